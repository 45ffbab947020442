//! What a word of a page table means to the manager.
//!
//! Present words are the machine's ([`Machine::encode`]). Of a word that is not present, bit 0 is
//! clear, bits 1 to 3 say what kind it is, and bits 12 to 51 name a frame or a swap slot, every bit
//! inverted:
//!
//! * **empty**: nothing was ever there, or what was there has been flushed and given up;
//! * **swapped**: the page lies in a swap slot;
//! * **marker**: the page was taken away lazily (S3) and translations to this frame may still be in
//!   use; the entry may be rewritten only with this frame, or after a flush;
//! * **moving**: the page is being migrated; its page lock is held meanwhile.
//!
//! # Why inverted
//!
//! Intel processors with the L1 terminal fault (L1TF, CVE-2018-3620) go on speculatively with the
//! address bits of an entry that is not present, and read what the first-level cache has of that
//! physical memory. A program could name any frame by having it swapped out or taken away lazily.
//! Inverted, the bits name memory in the upper half of the physical addresses, however few of the 40
//! bits a processor looks at, and [`MemoryMap`](crate::MemoryMap) has none there. The empty word
//! names frame 0; on machines with such processors it must hold nothing secret, as elsewhere.

use crate::machine::{Entry, Level, Machine};
use quell::Frame;

const SWAPPED: u64 = 1 << 1;
const MARKER: u64 = 2 << 1;
const MOVING: u64 = 3 << 1;
const KIND: u64 = 7 << 1;
/// The place of a frame in entries of every affected format.
const SHIFT: u32 = 12;
/// Frames and slots below this can be named.
const NUMBERS: u64 = 1 << 40;

/// The word that names `number`.
const fn absent(kind: u64, number: u64) -> u64 {
    debug_assert!(number < NUMBERS);
    kind | (!number & (NUMBERS - 1)) << SHIFT
}

/// Returns the number in the word.
const fn number(word: u64) -> u64 {
    !(word >> SHIFT) & (NUMBERS - 1)
}

/// A decoded word of a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EntryKind {
    Empty,
    /// A page is mapped.
    Page(Entry),
    /// A table of the next level.
    Table(Frame),
    /// The swap slot that holds the page.
    Swapped(u32),
    /// The frame that was taken away lazily.
    Marker(Frame),
    /// The frame that is being migrated.
    Moving(Frame),
}

impl EntryKind {
    pub(crate) fn of<M: Machine>(machine: &M, word: u64, level: Level) -> EntryKind {
        if word & 1 != 0 {
            let entry = machine.decode(word, level);
            return if entry.table {
                EntryKind::Table(entry.frame)
            } else {
                EntryKind::Page(entry)
            };
        }
        match word & KIND {
            SWAPPED => EntryKind::Swapped(number(word) as u32),
            MARKER => EntryKind::Marker(Frame(number(word))),
            MOVING => EntryKind::Moving(Frame(number(word))),
            _ => EntryKind::Empty,
        }
    }

    pub(crate) fn word<M: Machine>(self, machine: &M, level: Level) -> u64 {
        match self {
            EntryKind::Empty => 0,
            EntryKind::Page(entry) => machine.encode(entry, level),
            EntryKind::Table(frame) => machine.encode(Entry::table(frame), level),
            EntryKind::Swapped(slot) => absent(SWAPPED, u64::from(slot)),
            EntryKind::Marker(frame) => absent(MARKER, frame.0),
            EntryKind::Moving(frame) => absent(MOVING, frame.0),
        }
    }

    /// Returns the entry as hardware sees it.
    pub(crate) fn entry(self) -> Entry {
        match self {
            EntryKind::Page(entry) => entry,
            EntryKind::Table(frame) => Entry::table(frame),
            EntryKind::Empty
            | EntryKind::Swapped(_)
            | EntryKind::Marker(_)
            | EntryKind::Moving(_) => Entry::ABSENT,
        }
    }

    /// The frame whose reverse map names this entry, if one does (for a marker: if it still does).
    pub(crate) fn frame(self) -> Option<Frame> {
        match self {
            EntryKind::Page(entry) => Some(entry.frame),
            EntryKind::Marker(frame) | EntryKind::Moving(frame) => Some(frame),
            EntryKind::Empty | EntryKind::Table(_) | EntryKind::Swapped(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// On processors with 36 to 52 physical address bits, whose upper half is without memory, the address bits of
        /// an absent entry name no memory.
        #[test]
        fn absent_entries_name_no_memory(
            bits in 36u32..=52,
            random: u64,
            slot: u32,
            kind in prop::sample::select(vec![MARKER, MOVING]),
        ) {
            let memory = 1u64 << (bits - 13);
            let frame = random & (memory - 1);
            let slot = u64::from(slot) & (memory - 1);
            for (word, named) in [
                (absent(kind, frame), frame),
                (absent(SWAPPED, slot), slot),
            ] {
                prop_assert_eq!(word & 1, 0);
                let address = word & ((1 << bits) - 1) & !0xfff;
                prop_assert!(address >> 12 >= memory, "{word:#x} names {:#x}", address >> 12);
                prop_assert_eq!(number(word), named);
            }
            prop_assert_eq!(absent(kind, frame) & KIND, kind);
        }
    }
}
