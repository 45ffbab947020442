//! The content of a page, in as few bytes as its pattern needs.
//!
//! Most programs write one value into each line of a page, or into one word of it. Such a page takes 32 bytes of the
//! host's memory instead of 4096.

/// The bytes of a page.
pub(super) type Bytes = [u8; 4096];

/// The bytes of a line.
const LINE: usize = 64;

/// The content of a page.
#[derive(Clone, Default)]
pub(super) enum Content {
    #[default]
    Zero,
    /// One value in each line of a run, and another one in the next run.
    Runs(Runs),
    Any(Box<Bytes>),
}

/// Lines that hold a value in one word: `first` in `start..middle`, `second` in `middle..end`. All else is zero.
///
/// With two runs, a program may overwrite its values from the first line to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Runs {
    first: u64,
    second: u64,
    word: u8,
    start: u8,
    middle: u8,
    end: u8,
}

impl Runs {
    fn new(line: u8, word: u8, value: u64) -> Self {
        Runs { first: value, second: 0, word, start: line, middle: line + 1, end: line + 1 }
    }

    #[inline]
    fn load(&self, line: u8, word: u8) -> u64 {
        if word != self.word || line < self.start || line >= self.end {
            0
        } else if line < self.middle {
            self.first
        } else {
            self.second
        }
    }

    /// Writes a word of a line. Returns `false` if the result has no such form.
    fn store(&mut self, line: u8, word: u8, value: u64) -> bool {
        if self.load(line, word) == value {
            return true;
        }
        if word != self.word {
            return false;
        }
        let one_run = self.middle == self.end;
        if line == self.middle && value == self.first {
            self.middle += 1;
            self.end = self.end.max(self.middle);
        } else if line == self.end && !one_run && value == self.second {
            self.end += 1;
        } else if line == self.end && one_run {
            self.second = value;
            self.end += 1;
        } else if line == self.start && one_run {
            self.second = self.first;
            self.first = value;
            self.middle = self.start + 1;
        } else {
            return false;
        }
        true
    }

    fn write_to(&self, bytes: &mut Bytes) {
        for line in self.start..self.end {
            let at = usize::from(line) * LINE + usize::from(self.word) * 8;
            bytes[at..at + 8].copy_from_slice(&self.load(line, self.word).to_le_bytes());
        }
    }
}

/// Returns the line and the word of an offset; `None` if no word begins there.
#[inline]
fn place(offset: usize) -> Option<(u8, u8)> {
    let place = ((offset / LINE) as u8, (offset % LINE / 8) as u8);
    offset.is_multiple_of(8).then_some(place)
}

impl Content {
    /// Finds the shortest form of a page's bytes.
    pub fn of(bytes: &Bytes) -> Option<Content> {
        let mut content = Content::Zero;
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            let value = u64::from_le_bytes(value);
            if value != 0 && !content.store(index * 8, value) {
                return None;
            }
        }
        Some(content)
    }

    /// Returns the word at an offset.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        match (self, place(offset)) {
            (Content::Zero, _) => 0,
            (Content::Runs(runs), Some((line, word))) => runs.load(line, word),
            (Content::Runs(_), None) | (Content::Any(_), _) => {
                let mut bytes = [0; 8];
                self.read(offset, &mut bytes);
                u64::from_le_bytes(bytes)
            }
        }
    }

    /// Writes the word at an offset. Returns `false` if that needs all bytes of the page.
    pub fn store(&mut self, offset: usize, value: u64) -> bool {
        match (&mut *self, place(offset)) {
            (Content::Zero, _) if value == 0 => true,
            (Content::Zero, Some((line, word))) => {
                *self = Content::Runs(Runs::new(line, word, value));
                true
            }
            (Content::Runs(runs), Some((line, word))) => runs.store(line, word, value),
            (Content::Zero | Content::Runs(_), None) => false,
            (Content::Any(bytes), _) => {
                bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
                true
            }
        }
    }

    /// Reads bytes from an offset on.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        match self {
            Content::Zero => into.fill(0),
            Content::Runs(runs) => {
                let mut bytes = [0; 4096];
                runs.write_to(&mut bytes);
                into.copy_from_slice(&bytes[offset..offset + into.len()]);
            }
            Content::Any(bytes) => into.copy_from_slice(&bytes[offset..offset + into.len()]),
        }
    }

    /// Returns all bytes for a write; `zeros` supplies a page of zeros for them.
    pub fn all(&mut self, zeros: impl FnOnce() -> Box<Bytes>) -> &mut Bytes {
        if !matches!(self, Content::Any(_)) {
            let mut bytes = zeros();
            if let Content::Runs(runs) = self {
                runs.write_to(&mut bytes);
            }
            *self = Content::Any(bytes);
        }
        match self {
            Content::Any(bytes) => bytes,
            Content::Zero | Content::Runs(_) => unreachable!("it was just made"),
        }
    }

    /// Returns whether a byte isn't zero.
    pub fn is_nonzero(&self) -> bool {
        match self {
            Content::Zero => false,
            Content::Runs(runs) => runs.first != 0 || runs.middle < runs.end && runs.second != 0,
            Content::Any(bytes) => bytes.iter().any(|&byte| byte != 0),
        }
    }
}
