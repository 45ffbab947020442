//! Encodes the manager's entries of page tables, present or not.
//!
//! Present words have the machine's format ([`Machine::encode`]). In a non-present word, bit 0 is clear and bits 1 to 3
//! contain the kind. Bits 12 to 51 name a frame or a swap slot, with every bit inverted. The kinds are:
//!
//! * **empty**: never used, or its content was flushed and freed;
//! * **swapped**: the page is in a swap slot;
//! * **marker**: the page was unmapped lazily (S3), and translations to this frame may still be in use. The entry may
//!   be rewritten only with this frame, or after a flush;
//! * **moving**: the page is being migrated under its page lock.
//!
//! # Why inverted
//!
//! Some Intel processors use the address bits of a non-present entry speculatively, and read that physical memory if it
//! is in the L1 cache (L1 terminal fault, CVE-2018-3620). A program could choose the frame by having it swapped out or
//! unmapped lazily. Inverted bits name the upper half of the physical address space, and
//! [`MemoryMap`](crate::MemoryMap) has no memory there. That holds however many of the 40 bits a processor uses. The
//! empty word names frame 0. On such processors that frame must contain no secrets, as in other kernels.

use crate::machine::{Entry, Level, Machine};
use quell::Frame;

const SWAPPED: u64 = 1 << 1;
const MARKER: u64 = 2 << 1;
const MOVING: u64 = 3 << 1;
const KIND: u64 = 7 << 1;
/// The position of a frame in entries of every affected format.
const SHIFT: u32 = 12;
/// Frames and slots must be below this to be named.
const NUMBERS: u64 = 1 << 40;

/// Returns the word that names `number`.
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
    /// A mapped page.
    Page(Entry),
    /// A next-level table.
    Table(Frame),
    /// The swap slot of the page.
    Swapped(u32),
    /// The lazily unmapped frame.
    Marker(Frame),
    /// The frame under migration.
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

    /// Returns the frame whose reverse map may list this entry. A marker may no longer be listed.
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
        /// On processors with 36 to 52 physical address bits and no memory in the upper half, absent entries name no
        /// memory.
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
