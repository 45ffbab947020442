//! Stores page-table pages, and encodes their entries.

use crate::word::AdversaryWord;
use memmap2::{MmapOptions, MmapRaw};
use quell::Frame;
use quell_vm::machine::{Entry, TABLE_WORDS};
use std::mem::ManuallyDrop;
use std::slice;

pub(crate) const PRESENT: u64 = 1;
pub(crate) const WRITABLE: u64 = 1 << 1;
pub(crate) const USER: u64 = 1 << 2;
pub(crate) const ACCESSED: u64 = 1 << 3;
pub(crate) const DIRTY: u64 = 1 << 4;
pub(crate) const TABLE: u64 = 1 << 5;
pub(crate) const EXECUTABLE: u64 = 1 << 6;
pub(crate) const GLOBAL: u64 = 1 << 7;
/// Marks an entry as one of a block ([`BLOCK`]). Bits 8 and 9 belong to software.
pub(crate) const CONTIGUOUS: u64 = 1 << 10;
/// The number of pages in a block. Hardware has sixteen.
///
/// The number is as small as possible, so that races within a block are frequent.
pub const BLOCK: u64 = 2;
pub(crate) const FRAME_SHIFT: u32 = 12;

/// Encodes an entry in the format of the machines under the adversary.
pub fn encode(entry: Entry) -> u64 {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    bit(entry.present, PRESENT)
        | bit(entry.writable, WRITABLE)
        | bit(entry.user, USER)
        | bit(entry.accessed, ACCESSED)
        | bit(entry.dirty, DIRTY)
        | bit(entry.table, TABLE)
        | bit(entry.executable, EXECUTABLE)
        | bit(entry.global, GLOBAL)
        | bit(entry.contiguous, CONTIGUOUS)
        | entry.frame.0 << FRAME_SHIFT
}

/// Decodes an entry in that format.
pub fn decode(word: u64) -> Entry {
    if word & PRESENT == 0 {
        return Entry::ABSENT;
    }
    Entry {
        present: true,
        writable: word & WRITABLE != 0,
        user: word & USER != 0,
        accessed: word & ACCESSED != 0,
        dirty: word & DIRTY != 0,
        table: word & TABLE != 0,
        executable: word & EXECUTABLE != 0,
        global: word & GLOBAL != 0,
        contiguous: word & CONTIGUOUS != 0,
        frame: Frame(word >> FRAME_SHIFT),
        ..Entry::ABSENT
    }
}

pub(super) fn frame_of(word: u64) -> u32 {
    (word >> FRAME_SHIFT) as u32
}

/// The words of a page-table page. The arena frees them between runs, when nothing refers to them, so we don't drop the
/// single words.
pub(super) type TablePage = ManuallyDrop<[AdversaryWord; TABLE_WORDS]>;

const _: () = assert!(size_of::<TablePage>() == TABLE_WORDS * size_of::<u64>());
const _: () = assert!(align_of::<TablePage>() == align_of::<u64>());

/// The words of all page-table pages.
///
/// The arena has room for thousands of pages, and a run uses few. Its memory is mapped instead of allocated, as for a
/// search's [heap](quell_vm::sim::heap), so that the host zeroes only the pages that are touched.
pub struct Arena {
    memory: MmapRaw,
    frames: usize,
}

impl Arena {
    /// Creates room for `frames` page-table pages. They're in the frames from 0 on.
    ///
    /// # Panics
    /// If the host has no memory for them.
    pub fn new(frames: usize) -> Self {
        let bytes = (frames * size_of::<TablePage>()).max(1);
        let memory = MmapOptions::new().len(bytes).map_anon();
        let memory = memory.expect("the host has memory for the tables").into();
        Arena { memory, frames }
    }

    /// Returns all of them, indexed by frame.
    #[inline]
    pub(super) fn pages(&self) -> &[TablePage] {
        // SAFETY: the mapping is as large as that many pages, aligned to a page of the host, and lives as long as
        // `self`. Any bit pattern is a valid word, and words change only as atomics.
        unsafe { slice::from_raw_parts(self.memory.as_ptr().cast(), self.frames) }
    }

    /// Returns the address of the first word.
    pub fn start(&self) -> usize {
        self.memory.as_ptr().addr()
    }

    #[inline]
    pub fn table(&self, frame: u32) -> &[AdversaryWord; TABLE_WORDS] {
        &self.pages()[frame as usize]
    }

    /// Returns the table and the index of a word, if it belongs to a table.
    #[inline]
    pub fn place(&self, word: *const AdversaryWord) -> Option<(u32, usize)> {
        let index = word.addr().wrapping_sub(self.start()) / size_of::<AdversaryWord>();
        (index < self.frames * TABLE_WORDS)
            .then_some(((index / TABLE_WORDS) as u32, index % TABLE_WORDS))
    }
}
