//! Reads a recording from its file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::write::function;
use super::{
    CLOSED, Datum, FrameRecord, MAGIC, MOST_BLOCK, MOST_STACKS, Record, SampleRecord, boot_id,
};
use crate::perf::sample::{Frame, Item, Sample, Source, SourceError, Value};
use crate::perf::symbols::{self, Symbols};

/// A recording in a file. Its samples are in the order of time over all CPUs, apart from a few late ones.
pub struct Recording {
    path: PathBuf,
    file: BufReader<File>,
    /// The offset of the next block.
    at: u64,
    /// The offset of the end of the items.
    end: u64,
    bytes: u64,
    /// The current block, and the number of its bytes that have been read.
    block: Vec<u8>,
    done: usize,
    names: Vec<Arc<str>>,
    frames: Vec<Frame>,
    stacks: Vec<Arc<[Frame]>>,
    events: Vec<(Arc<str>, Vec<Arc<str>>)>,
    /// The functions of frames, if the recording was closed.
    functions: FxHashMap<u32, Arc<str>>,
    /// Looks functions up, if the recording wasn't closed.
    symbols: Option<Symbols>,
    same_boot: bool,
    last_ns: u64,
    /// Items to return before the next record.
    ready: VecDeque<Item>,
    over: bool,
}

impl Recording {
    /// Returns whether a file begins like a recording of any version.
    ///
    /// Returns `false` for a pipe, and reads nothing from it.
    pub fn is_one(path: &Path) -> bool {
        if !path.is_file() {
            return false;
        }
        let mut begin = [0; MAGIC.len() - 2];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
        read.is_ok() && begin == MAGIC[..begin.len()]
    }

    /// Opens a recording.
    ///
    /// # Errors
    ///
    /// If the file can't be read, isn't a recording, or has another version.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let refuse = |what: String| SourceError { place: path.display().to_string(), what };
        let mut file = File::open(path).map_err(|error| refuse(error.to_string()))?;
        let mut magic = Vec::new();
        let bytes = (&mut file).take(MAGIC.len() as u64).read_to_end(&mut magic);
        let length = file.metadata().map(|data| data.len());
        let (Ok(_), Ok(bytes)) = (bytes, length) else {
            return Err(refuse("it cannot be read".to_owned()));
        };
        if magic != MAGIC {
            let common = MAGIC.len() - 2;
            return Err(refuse(if magic.get(..common) == Some(&MAGIC[..common]) {
                "another version of quell made this recording; read it with that version, or record again".to_owned()
            } else {
                "not a recording of quell; `quell record -o FILE` writes one".to_owned()
            }));
        }
        let mut recording = Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(1 << 16, file),
            at: MAGIC.len() as u64,
            end: bytes,
            bytes,
            block: Vec::new(),
            done: 0,
            names: Vec::new(),
            frames: Vec::new(),
            stacks: Vec::new(),
            events: Vec::new(),
            functions: FxHashMap::default(),
            symbols: None,
            same_boot: true,
            last_ns: 0,
            ready: VecDeque::new(),
            over: false,
        };
        recording.read_functions().map_err(|error| refuse(error.to_string()))?;
        Ok(recording)
    }

    /// Returns whether the recorder closed the file. If not, it was killed, and the last events are missing.
    pub fn closed(&self) -> bool {
        self.symbols.is_none()
    }

    /// Reads the names of the functions at the end of a closed file.
    fn read_functions(&mut self) -> io::Result<()> {
        if let Some(begin) = self.footer()? {
            self.end = self.bytes - 24;
            self.at = begin;
            let mut understood = true;
            while understood && let Ok(true) = self.next_block() {
                while self.done < self.block.len() {
                    let Ok(Record::Functions(functions)) = self.next_record() else {
                        understood = false;
                        break;
                    };
                    self.functions
                        .extend(functions.into_iter().map(|(frame, name)| (frame, name.into())));
                }
            }
            self.end = begin;
        } else {
            self.symbols = Some(Symbols::default());
            let note = "The recorder was killed before it closed this file, so the last events are missing.";
            self.ready.push_back(Item::Note(note.into()));
        }
        self.at = MAGIC.len() as u64;
        self.file.seek(SeekFrom::Start(self.at))?;
        self.block.clear();
        self.done = 0;
        Ok(())
    }

    /// Returns the offset of the functions' names, if the file has an end.
    fn footer(&mut self) -> io::Result<Option<u64>> {
        let first = MAGIC.len() as u64;
        let Some(at) = self.bytes.checked_sub(24).filter(|at| *at >= first) else {
            return Ok(None);
        };
        self.file.seek(SeekFrom::Start(at))?;
        let mut footer = [0; 24];
        self.file.read_exact(&mut footer)?;
        let (begin, closed) = footer.split_at(8);
        let begin = u64::from_le_bytes(begin.try_into().expect("eight bytes"));
        if closed != CLOSED || !(first..=at).contains(&begin) {
            return Ok(None);
        }
        self.file.seek(SeekFrom::Start(begin))?;
        Ok(Some(begin))
    }

    /// Reads the next block. Returns `false` if there is none, or only a part of one.
    fn next_block(&mut self) -> Result<bool, SourceError> {
        let Some(left) = self.end.checked_sub(self.at + 8) else {
            return Ok(false);
        };
        let mut sizes = [0; 8];
        self.file.read_exact(&mut sizes).map_err(|error| self.wrong(error.to_string()))?;
        let [compressed, bytes] = [&sizes[..4], &sizes[4..]]
            .map(|size| u32::from_le_bytes(size.try_into().expect("four bytes")) as usize);
        if bytes > MOST_BLOCK || compressed > lz4_flex::block::get_maximum_output_size(MOST_BLOCK) {
            return Err(self.wrong(format!("a block claims to have {bytes} bytes")));
        }
        if compressed as u64 > left {
            return Ok(false);
        }
        let mut packed = vec![0; compressed];
        self.file.read_exact(&mut packed).map_err(|error| self.wrong(error.to_string()))?;
        self.block.resize(bytes, 0);
        let unpacked = lz4_flex::block::decompress_into(&packed, &mut self.block);
        match unpacked {
            Ok(unpacked) if unpacked == bytes => {}
            Ok(_) => return Err(self.wrong("a block is shorter than it claims".to_owned())),
            Err(error) => return Err(self.wrong(error.to_string())),
        }
        self.at += 8 + compressed as u64;
        self.done = 0;
        Ok(true)
    }

    fn next_record(&mut self) -> Result<Record, SourceError> {
        match postcard::take_from_bytes(&self.block[self.done..]) {
            Ok((record, rest)) => {
                self.done = self.block.len() - rest.len();
                Ok(record)
            }
            Err(error) => Err(self.wrong(format!("a record is not understood: {error}"))),
        }
    }

    /// Returns the item of the next record that has one.
    fn advance(&mut self) -> Result<Option<Item>, SourceError> {
        loop {
            if self.done >= self.block.len() && !self.next_block()? {
                return Ok(None);
            }
            if self.done >= self.block.len() {
                continue;
            }
            let record = self.next_record()?;
            if let (Record::Functions(_), false) = (&record, self.closed()) {
                // Only the last 24 bytes are missing, so the offset of the functions is unknown. All items have been
                // read.
                return Ok(None);
            }
            if let Some(item) = self.take_in(record)? {
                return Ok(Some(item));
            }
        }
    }

    /// Remembers a record's content, or converts it to an item.
    fn take_in(&mut self, record: Record) -> Result<Option<Item>, SourceError> {
        match record {
            Record::Boot(id) => self.same_boot = id == boot_id(),
            Record::Name(name) => self.names.push(name.into()),
            Record::Frame(frame) => {
                let frame = self.frame(&frame)?;
                self.frames.push(frame);
            }
            Record::Stack(numbers) => {
                let mut frames = Vec::with_capacity(numbers.len());
                for number in numbers {
                    let frame = self.frames.get(number as usize);
                    frames.push(frame.ok_or_else(|| self.wrong(unknown("frame", number)))?.clone());
                }
                if self.stacks.len() == MOST_STACKS {
                    return Err(self.wrong("it has more stacks than a recorder keeps".to_owned()));
                }
                self.stacks.push(frames.into());
            }
            Record::Forget => self.stacks.clear(),
            Record::Event(name, fields) => {
                let name = self.name(name)?;
                let fields =
                    fields.into_iter().map(|field| self.name(field)).collect::<Result<_, _>>()?;
                self.events.push((name, fields));
            }
            Record::Functions(_) => {
                return Err(self.wrong("functions are among the items".to_owned()));
            }
            Record::Sample(sample) => return Ok(Some(Item::Sample(self.sample(sample)?))),
            Record::Item(item) => return Ok(Some(item)),
        }
        Ok(None)
    }

    fn name(&self, number: u32) -> Result<Arc<str>, SourceError> {
        let name = self.names.get(number as usize).cloned();
        name.ok_or_else(|| self.wrong(unknown("name", number)))
    }

    fn frame(&mut self, frame: &FrameRecord) -> Result<Frame, SourceError> {
        let module = frame.module.checked_sub(1).map(|number| self.name(number)).transpose()?;
        let number = self.frames.len() as u32;
        let symbol = match &mut self.symbols {
            None => self.functions.get(&number).cloned(),
            Some(_) if frame.kernel && !self.same_boot => None,
            Some(symbols) => function(symbols, frame, module.as_ref()),
        };
        let is_file = module.as_ref().is_some_and(|module| symbols::is_file(module));
        let (address, module) = match &symbol {
            _ if frame.kernel => (frame.address, Some("[kernel]".into())),
            // For a function without a name, the offset in the file is more useful. It's the same in every process.
            None => (if is_file { frame.offset } else { frame.address }, module),
            // Memory without a file that has named functions was filled by a compiler at run time.
            Some(_) => (frame.address, if is_file { module } else { Some("[jit]".into()) }),
        };
        Ok(Frame { address, kernel: frame.kernel, symbol, module })
    }

    fn sample(&mut self, sample: SampleRecord) -> Result<Sample, SourceError> {
        let Some((event, names)) = self.events.get(sample.event as usize) else {
            return Err(self.wrong(unknown("event", sample.event)));
        };
        let mut fields = Vec::with_capacity(names.len());
        for (name, value) in names.iter().zip(sample.values) {
            let value = match value {
                Datum::Absent => continue,
                Datum::Signed(number) => Value::Signed(number),
                Datum::Unsigned(number) => Value::Unsigned(number),
                Datum::Text(name) => Value::Text(self.name(name)?),
            };
            fields.push((name.clone(), value));
        }
        let stack = match sample.stack.checked_sub(1) {
            None => Some(Arc::default()),
            Some(number) => self.stacks.get(number as usize).cloned(),
        };
        let stack = stack.ok_or_else(|| self.wrong(unknown("stack", sample.stack)))?;
        let time_ns = self.last_ns.wrapping_add(sample.later_ns as u64);
        let (event, comm) = (event.clone(), self.name(sample.comm)?);
        self.last_ns = time_ns;
        let (cpu, pid, tid) = (sample.cpu, sample.pid, sample.tid);
        Ok(Sample { time_ns, cpu, pid, tid, comm, event, fields, stack })
    }

    fn wrong(&self, what: String) -> SourceError {
        SourceError {
            place: format!("{}, in the block at byte {}", self.path.display(), self.at),
            what,
        }
    }
}

impl Source for Recording {
    fn next(&mut self) -> Result<Option<Item>, SourceError> {
        if let Some(item) = self.ready.pop_front() {
            return Ok(Some(item));
        }
        if self.over {
            return Ok(None);
        }
        let item = self.advance();
        if let Ok(Some(item)) = item {
            return Ok(Some(item));
        }
        self.over = true;
        if let Some(symbols) = &mut self.symbols {
            self.ready.extend(symbols.notes().into_iter().map(|note| Item::Note(note.into())));
        }
        match item {
            Err(error) => {
                self.ready.clear();
                Err(error)
            }
            Ok(_) => Ok(self.ready.pop_front()),
        }
    }

    fn progress(&self) -> Option<f64> {
        (self.end > 0).then(|| self.at as f64 / self.end as f64)
    }
}

/// Describes a reference to a record that the file doesn't contain.
fn unknown(what: &str, number: u32) -> String {
    format!("{what} {number} was never written")
}
