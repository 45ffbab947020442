//! Writes a recording to its file.

use std::hash::Hash;
use std::io::{self, Write};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{BLOCK, CLOSED, Datum, FrameRecord, MAGIC, MOST_STACKS, Record, SampleRecord, boot_id};
use crate::perf::sample::{Item, Value};
use crate::perf::symbols::{self, Symbols};

/// A position in code before its name is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The address.
    pub address: u64,
    /// Whether it's in the kernel.
    pub kernel: bool,
    /// Whether it's a return address.
    pub call: bool,
    /// The process.
    pub pid: u32,
    /// The mapped file and the offset in it. `None` if they aren't known.
    pub module: Option<(Arc<str>, u64)>,
}

/// Writes a recording.
///
/// Events are in the file after [`Writer::flush`] or [`Writer::finish`]. Dropping the writer loses later events.
pub struct Writer<W> {
    output: W,
    written: u64,
    block: Vec<u8>,
    compressed: Vec<u8>,
    names: FxHashMap<Arc<str>, u32>,
    frames: FxHashMap<FrameRecord, u32>,
    stacks: FxHashMap<Box<[u32]>, u32>,
    events: FxHashMap<Arc<str>, (u32, Vec<Arc<str>>)>,
    /// Frames in the order of their numbers, each with its file.
    order: Vec<(FrameRecord, Option<Arc<str>>)>,
    last_ns: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    ///
    /// If the output can't be written. The same holds for all methods.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(MAGIC)?;
        let mut writer = Self {
            output,
            written: MAGIC.len() as u64,
            block: Vec::with_capacity(BLOCK + 4096),
            compressed: Vec::new(),
            names: FxHashMap::default(),
            frames: FxHashMap::default(),
            stacks: FxHashMap::default(),
            events: FxHashMap::default(),
            order: Vec::new(),
            last_ns: 0,
        };
        writer.put(&Record::Boot(boot_id()))?;
        Ok(writer)
    }

    /// Writes an item other than a sample.
    pub fn item(&mut self, item: &Item) -> io::Result<()> {
        self.put(&Record::Item(item.clone()))
    }

    /// Writes a sample with the places of its stack, innermost first.
    ///
    /// [`Writer::finish`] looks up their names. The sample's own stack is ignored.
    pub fn sample(&mut self, sample: &crate::perf::Sample, places: &[Place]) -> io::Result<()> {
        let event = match self.events.get(&sample.event) {
            // An event has the same fields each time, unless its record was cut off.
            Some((event, fields))
                if sample.fields.iter().all(|(name, _)| fields.contains(name)) =>
            {
                *event
            }
            _ => {
                let fields: Vec<Arc<str>> =
                    sample.fields.iter().map(|(name, _)| name.clone()).collect();
                self.event(&sample.event, fields)?
            }
        };
        let comm = self.name(&sample.comm)?;
        let stack = self.stack(places)?;
        let fields = self.events[&sample.event].1.clone();
        let mut values = Vec::with_capacity(fields.len());
        for field in &fields {
            values.push(match sample.field(field) {
                None => Datum::Absent,
                Some(Value::Signed(number)) => Datum::Signed(*number),
                Some(Value::Unsigned(number)) => Datum::Unsigned(*number),
                Some(Value::Text(text)) => Datum::Text(self.name(text)?),
            });
        }
        let later_ns = sample.time_ns.wrapping_sub(self.last_ns) as i64;
        self.last_ns = sample.time_ns;
        let (cpu, pid, tid) = (sample.cpu, sample.pid, sample.tid);
        self.put(&Record::Sample(SampleRecord {
            event,
            later_ns,
            cpu,
            pid,
            tid,
            comm,
            stack,
            values,
        }))
    }

    /// Writes all events to the output. If the recorder is killed afterwards, they're still readable.
    pub fn flush(&mut self) -> io::Result<()> {
        self.close_block()?;
        self.output.flush()
    }

    /// Looks up the names of all functions and closes the recording. Also writes notes on files that couldn't be read.
    pub fn finish(mut self, symbols: &mut Symbols) -> io::Result<W> {
        let mut functions = Vec::new();
        for (number, (frame, module)) in self.order.iter().enumerate() {
            let name = function(symbols, frame, module.as_ref());
            functions.extend(name.map(|name| (number as u32, name.to_string())));
        }
        for note in symbols.notes() {
            self.item(&Item::Note(note.into()))?;
        }
        self.close_block()?;
        let begin = self.written;
        for part in functions.chunks(4096) {
            self.put(&Record::Functions(part.to_vec()))?;
        }
        self.close_block()?;
        self.output.write_all(&begin.to_le_bytes())?;
        self.output.write_all(CLOSED)?;
        self.output.flush()?;
        Ok(self.output)
    }

    /// Returns the number of a name. Writes it if it's new.
    fn name(&mut self, name: &Arc<str>) -> io::Result<u32> {
        if let Some(known) = self.names.get(name) {
            return Ok(*known);
        }
        self.put(&Record::Name(name.to_string()))?;
        Ok(next(&mut self.names, name.clone()))
    }

    /// Writes a kind of event. Returns its number.
    fn event(&mut self, name: &Arc<str>, fields: Vec<Arc<str>>) -> io::Result<u32> {
        let own = self.name(name)?;
        let mut numbers = Vec::with_capacity(fields.len());
        for field in &fields {
            numbers.push(self.name(field)?);
        }
        self.put(&Record::Event(own, numbers))?;
        // Replaced kinds keep their numbers.
        let known = self.events.values().map(|(number, _)| number + 1);
        let number = known.max().unwrap_or(0);
        self.events.insert(name.clone(), (number, fields));
        Ok(number)
    }

    /// Returns the number of a stack, from 1. Writes it and its frames if they are new.
    fn stack(&mut self, places: &[Place]) -> io::Result<u32> {
        if places.is_empty() {
            return Ok(0);
        }
        let mut frames = Vec::with_capacity(places.len());
        for place in places {
            frames.push(self.frame(place)?);
        }
        if let Some(known) = self.stacks.get(&frames[..]) {
            return Ok(known + 1);
        }
        if self.stacks.len() == MOST_STACKS {
            self.stacks.clear();
            self.put(&Record::Forget)?;
        }
        self.put(&Record::Stack(frames.clone()))?;
        Ok(next(&mut self.stacks, frames.into()) + 1)
    }

    /// Returns the number of a frame. Writes it if it's new.
    fn frame(&mut self, place: &Place) -> io::Result<u32> {
        let (module, offset) = match &place.module {
            Some((module, offset)) => (self.name(module)? + 1, *offset),
            None => (0, 0),
        };
        let file = place.module.as_ref().map(|(module, _)| module);
        let shared = place.kernel || file.is_some_and(|module| symbols::is_file(module));
        let frame = FrameRecord {
            address: place.address,
            kernel: place.kernel,
            call: place.call,
            module,
            offset,
            pid: if shared { 0 } else { place.pid },
        };
        if let Some(known) = self.frames.get(&frame) {
            return Ok(*known);
        }
        let written =
            FrameRecord { pid: if place.kernel { 0 } else { place.pid }, ..frame.clone() };
        self.put(&Record::Frame(written.clone()))?;
        self.order.push((written, file.cloned()));
        Ok(next(&mut self.frames, frame))
    }

    /// Appends a record to the block.
    fn put(&mut self, record: &Record) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.block = postcard::to_extend(record, block).map_err(io::Error::other)?;
        if self.block.len() >= BLOCK {
            self.close_block()?;
        }
        Ok(())
    }

    /// Compresses and writes the block.
    fn close_block(&mut self) -> io::Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let most = lz4_flex::block::get_maximum_output_size(self.block.len());
        self.compressed.resize(most, 0);
        let bytes = lz4_flex::block::compress_into(&self.block, &mut self.compressed)
            .map_err(io::Error::other)?;
        // Blocks are far below 4 GiB.
        self.output.write_all(&(bytes as u32).to_le_bytes())?;
        self.output.write_all(&(self.block.len() as u32).to_le_bytes())?;
        self.output.write_all(&self.compressed[..bytes])?;
        self.written += 8 + bytes as u64;
        self.block.clear();
        Ok(())
    }
}

fn next<K: Hash + Eq>(map: &mut FxHashMap<K, u32>, key: K) -> u32 {
    let number = map.len() as u32;
    map.insert(key, number);
    number
}

/// Looks up the function of a frame.
pub(super) fn function(
    symbols: &mut Symbols,
    frame: &FrameRecord,
    module: Option<&Arc<str>>,
) -> Option<Arc<str>> {
    let before = u64::from(frame.call);
    match module {
        _ if frame.kernel => symbols.kernel(frame.address.wrapping_sub(before)),
        Some(module) if symbols::is_file(module) => {
            symbols.file(module, frame.pid, frame.offset.wrapping_sub(before))
        }
        _ => symbols.compiled(frame.pid, frame.address.wrapping_sub(before)),
    }
}
