//! Break before make: two translations of one address that must never meet in a TLB.
//!
//! Arm lets a TLB that holds two entries for one address use either, mix them, or raise an abort. So its manual (Arm
//! Architecture Reference Manual, DDI 0487, "Using break-before-make when updating translation table entries", rule
//! RWHZWS; "Misprogramming of the Contiguous bit") asks that software first writes an invalid entry, then invalidates
//! the old one with a broadcast, waits until that is complete, and only then writes the new entry. Who wants to read
//! the rule where it can be read freely finds it in the messages of Linux's commits d4b9e0790aa7 (in general) and
//! d8bdcff28764 (contiguous entries), and as checks in the crate `aarch64-paging` (commit 88fb6a1b84d9: sizes, output
//! addresses, memory types, global entries). It asks so where
//!
//! * the *size* of the translation changes: a block for a table, a table for a block or for another table;
//! * the *output address* changes, and the old or the new translation is writable, or the contents of the
//!   memory at the two differ;
//! * a *global* entry is made where a TLB may hold one of the same address that is not;
//! * an entry becomes one of a block of *contiguous* ones, or ceases to be one;
//! * the memory type or the cacheability changes, which entries of this machine do not have.
//!
//! x86-64 asks so of *sizes* alone: some processors raise a machine check where two meet ([`quell::flush_needed`] names
//! them). Here the pages below two tables are compared, not the tables. RISC-V asks for nothing.
//!
//! What is judged is the rule, not an access that goes wrong: at the moment from which a walker can bring a translation
//! in, none that contradicts it may be left in the TLB that it would bring it into. For a CPU that runs the space, that
//! moment is when the store of the new entry becomes visible, since its TLB holds whatever it could ([`mmu`](super)); a
//! CPU that has the space loaded lazily uses none of its translations, but its walker may bring them in, so the rule
//! holds there, too: so the old entry must have gone from the tables, and the invalidation of it must be *complete*,
//! not merely sent. A CPU that does not run the space walks none of its tables. There the moment is when it loads the
//! root again under a tag for which its TLB holds the old entry: a flush that the engine puts off until then comes
//! early enough, as nothing meets before. For the same reason nothing is held against a CPU that is offline: it flushes
//! everything before it uses anything.
//!
//! *Where nothing is broadcast* the flush is complete when every CPU that has the root loaded has flushed. So a kernel
//! there runs the engine under a policy that waits for that ("asynchronous" off: a receipt comes before the flush); its
//! idle CPUs leave their roots ([`Cpu::leave`](quell::Cpu::leave)), because an initiator asks no lazy CPU; and it
//! leaves no CPU alone that runs a program. Under policies that take receipts this judge says nothing of such an Arm
//! machine. On x86 it judges every policy: there few changes are concerned, and those are reported with
//! [`Scope::Tables`](quell::Scope::Tables), whose flush is waited for to the end.
//!
//! Entries of two roots are not compared: that one address space meets what is left of another is C5.
//!
//! A translation that may only be read gives way to another one without a flush if both frames hold the same: the
//! machine compares their contents at that moment ([`Meeting::of_equals`]).

use super::held::{GLOBAL_TAG, Pointer};
use super::leaves::Leaf;
use crate::tables::{CONTIGUOUS, PRESENT, TABLE, WRITABLE, frame_of};
use quell::Break;
use quell_vm::machine::Level;
use std::fmt;
use std::ops::Range;

/// A translation, or a pointer to a table, as the rule sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) tag: u16,
    pub(super) root: u32,
    /// The level of its table.
    pub(super) level: u8,
    /// The first page that it is about.
    pub(super) page: u64,
    pub(super) word: u64,
}

impl Entry {
    pub(super) fn of_leaf(leaf: &Leaf) -> Self {
        let &Leaf {
            tag,
            root,
            level,
            page,
            word,
            ..
        } = leaf;
        Entry {
            tag,
            root,
            level,
            page,
            word,
        }
    }

    pub(super) fn of_pointer(pointer: &Pointer) -> Self {
        Entry {
            tag: pointer.tag,
            root: pointer.root,
            level: pointer.level + 1,
            page: pointer.base,
            word: u64::from(pointer.table) << 12 | PRESENT | TABLE,
        }
    }

    fn is_table(&self) -> bool {
        self.level > 0 && self.word & TABLE != 0
    }

    pub(super) fn pages(&self) -> Range<u64> {
        self.page..self.page + Level(self.level).pages()
    }

    /// Returns whether both translate an address of one space that a TLB would find under one tag.
    pub(super) fn meets(&self, other: &Entry) -> bool {
        let tagged = self.tag == other.tag || self.is_global() || other.is_global();
        let (mine, others) = (self.pages(), other.pages());
        tagged && self.root == other.root && mine.start < others.end && others.start < mine.end
    }

    fn is_global(&self) -> bool {
        self.tag == GLOBAL_TAG
    }

    /// Returns whether `rule` forbids this new entry in a TLB that holds `old`, which it meets.
    pub(super) fn contradicts(&self, old: &Entry, rule: Break) -> bool {
        let moved = || rule == Break::Translation && frame_of(self.word) != frame_of(old.word);
        let turned = || {
            let global = self.is_global() && !old.is_global();
            rule == Break::Translation && (global || (self.word ^ old.word) & CONTIGUOUS != 0)
        };
        match (self.is_table(), old.is_table()) {
            // Entries below a table are judged by themselves, and so are tables of lower levels.
            (true, true) => self.level == old.level && moved(),
            (false, false) => self.level != old.level || moved() || turned(),
            (true, false) => self.level <= old.level,
            (false, true) => old.level <= self.level,
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.is_table(), self.level, self.is_global()) {
            (true, ..) => "a table",
            (false, 0, true) => "a global page",
            (false, 0, false) => "a page",
            (false, _, true) => "a large global page",
            (false, _, false) => "a large page",
        };
        write!(f, "{what} in frame {:#x}", frame_of(self.word))
    }
}

/// A new entry, and an entry that a TLB into which it can be filled may still hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    /// The CPU with that TLB.
    pub(crate) cpu: usize,
    /// The new entry's place in a table.
    pub(crate) place: (u32, usize),
    pub(super) new: Entry,
    pub(super) old: Entry,
    /// When the old entry was written.
    pub(crate) old_written: u32,
}

impl Meeting {
    /// The root from which both are walked.
    pub(crate) fn root(&self) -> u32 {
        self.new.root
    }

    /// The first page that both translate.
    pub(crate) fn page(&self) -> u64 {
        self.new.page.max(self.old.page)
    }

    /// The frame that the new entry leads to.
    pub(crate) fn frame(&self) -> u32 {
        frame_of(self.new.word)
    }

    /// The frames behind the old and the new translation, and how many there are, if the rule allows the exchange as
    /// long as these hold the same: nothing but the output address differs, and neither can be written.
    pub(crate) fn of_equals(&self) -> Option<(u32, u32, u64)> {
        let Meeting { new, old, .. } = self;
        let alike = !new.is_table()
            && !old.is_table()
            && new.level == old.level
            && (old.is_global() || !new.is_global())
            && (new.word ^ old.word) & CONTIGUOUS == 0
            && (new.word | old.word) & WRITABLE == 0;
        let frames = (frame_of(old.word), frame_of(new.word));
        alike.then(|| (frames.0, frames.1, Level(new.level).pages()))
    }
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, index) = self.place;
        let Meeting { new, old, .. } = self;
        write!(
            f,
            "break before make: entry {index} of table {table:#x} maps {new} where a TLB may still hold {old}"
        )
    }
}

#[cfg(test)]
mod tests;
