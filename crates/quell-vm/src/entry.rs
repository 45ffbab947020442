//! What a word of a page table means to the manager.
//!
//! Present words are the machine's ([`Machine::encode`]). Of a word that is not present, bit 0 is
//! clear, bits 1 to 3 say what kind it is and the rest names a frame or a swap slot:
//!
//! * **empty**: nothing was ever there, or what was there has been flushed and given up;
//! * **swapped**: the page lies in a swap slot;
//! * **marker**: the page was taken away lazily (S3) and translations to this frame may still be in
//!   use; the entry may be rewritten only with this frame, or after a flush;
//! * **moving**: the page is being migrated; its page lock is held meanwhile.

use crate::machine::{Entry, Level, Machine};
use quell::Frame;

const SWAPPED: u64 = 1 << 1;
const MARKER: u64 = 2 << 1;
const MOVING: u64 = 3 << 1;
const KIND: u64 = 7 << 1;
const SHIFT: u32 = 4;

/// A decoded word of a page table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum View {
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

impl View {
    pub(crate) fn of<M: Machine>(machine: &M, word: u64, level: Level) -> View {
        if word & 1 != 0 {
            let entry = machine.decode(word, level);
            return if entry.table {
                View::Table(entry.frame)
            } else {
                View::Page(entry)
            };
        }
        match word & KIND {
            SWAPPED => View::Swapped((word >> SHIFT) as u32),
            MARKER => View::Marker(Frame(word >> SHIFT)),
            MOVING => View::Moving(Frame(word >> SHIFT)),
            _ => View::Empty,
        }
    }

    pub(crate) fn word<M: Machine>(self, machine: &M, level: Level) -> u64 {
        match self {
            View::Empty => 0,
            View::Page(entry) => machine.encode(entry, level),
            View::Table(frame) => machine.encode(Entry::table(frame), level),
            View::Swapped(slot) => SWAPPED | u64::from(slot) << SHIFT,
            View::Marker(frame) => MARKER | frame.0 << SHIFT,
            View::Moving(frame) => MOVING | frame.0 << SHIFT,
        }
    }

    /// What hardware sees.
    pub(crate) fn entry(self) -> Entry {
        match self {
            View::Page(entry) => entry,
            View::Table(frame) => Entry::table(frame),
            View::Empty | View::Swapped(_) | View::Marker(_) | View::Moving(_) => Entry::ABSENT,
        }
    }

    /// The frame whose reverse map names this entry, if one does (for a marker: if it still does).
    pub(crate) fn frame(self) -> Option<Frame> {
        match self {
            View::Page(entry) => Some(entry.frame),
            View::Marker(frame) | View::Moving(frame) => Some(frame),
            View::Empty | View::Table(_) | View::Swapped(_) => None,
        }
    }
}
