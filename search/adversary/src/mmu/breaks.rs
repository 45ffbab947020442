//! Finds pairs of translations of one address that must never meet in a TLB (break before make).
//!
//! If a TLB holds two entries for one address, Arm lets it use either, mix them, or raise an abort. So its manual
//! requires three steps: write an invalid entry, invalidate the old one with a broadcast, and wait until that is
//! complete. Only then may software write the new entry. (Arm Architecture Reference Manual, DDI 0487, "Using
//! break-before-make when updating translation table entries", rule RWHZWS; "Misprogramming of the Contiguous bit".)
//! The messages of Linux's commits d4b9e0790aa7 (in general) and d8bdcff28764 (contiguous entries) explain the rule,
//! and can be read without registering with Arm. The crate `aarch64-paging` contains the rule as checks (commit
//! 88fb6a1b84d9: sizes, output addresses, memory types, global entries). It applies where
//!
//! * the *size* of the translation changes: a block for a table, a table for a block or for another table;
//! * the *output address* changes, and the old or the new translation is writable, or the contents of the memory at the
//!   two differ;
//! * a *global* entry is made where a TLB may hold one for the same address that isn't global;
//! * an entry becomes one of a block of *contiguous* ones, or stops being one;
//! * the memory type or the cacheability changes, which our machine's entries don't have.
//!
//! x86-64 requires this for *sizes* alone: some processors raise a machine check where two sizes meet
//! ([`quell::flush_needed`] names them). There the pages below two tables are compared, not the tables. RISC-V never
//! requires it.
//!
//! This module judges the rule itself, not whether an access has a wrong result. From the moment at which a walker can
//! bring a translation into a TLB, this TLB must hold no translation that contradicts it. The moment depends on the
//! CPU:
//!
//! * A CPU that runs the space: the moment at which the store of the new entry becomes visible, because its TLB holds
//!   everything that it could hold ([`mmu`](super)).
//! * A CPU that has the space loaded lazily: the same moment. It uses none of the translations, but its walker may
//!   bring them in. So here, too, the old entry must have left the tables, and its invalidation must be *complete*, not
//!   merely sent.
//! * A CPU that doesn't run the space walks none of its tables. Then it's the moment at which the CPU loads the root
//!   again under a tag for which its TLB holds the old entry. So the engine may defer the flush until then.
//! * A CPU that is offline: never, because it flushes everything before it uses anything.
//!
//! *Where nothing is broadcast*, the flush is complete when every CPU that has the root loaded has flushed. A receipt
//! comes before the flush. So on such an Arm machine a kernel runs the engine under a policy that waits for the flush
//! ("asynchronous" off). Its idle CPUs leave their roots ([`Cpu::leave`](quell::Cpu::leave)), because an initiator
//! doesn't interrupt lazy CPUs, and it has no undisturbed CPUs. Policies that take receipts aren't judged there. On x86
//! every policy is judged: the rule concerns few changes, and those are reported with
//! [`Scope::Tables`](quell::Scope::Tables), so the initiator waits until their flush is complete.
//!
//! Entries of two roots aren't compared, because a leftover of another address space is a matter of C5.
//!
//! A read-only translation may be replaced by another one without a flush if both frames have the same content. The
//! machine compares the contents at that moment ([`EntryConflict::of_equals`]).

use super::Mmu;
use super::held::Leaf;
use super::held::{GLOBAL_TAG, Pointer};
use crate::tables::{ACCESSED, CONTIGUOUS, PRESENT, TABLE, WRITABLE, frame_of};
use quell::Break;
use quell_vm::machine::Level;
use std::fmt;
use std::ops::Range;

/// A translation or a pointer to a table, as far as the rule depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) tag: u16,
    pub(super) root: u32,
    /// The level of its table.
    pub(super) level: u8,
    /// The first page that it translates.
    pub(super) page: u64,
    pub(super) word: u64,
}

impl Entry {
    pub(super) fn of_leaf(leaf: &Leaf) -> Self {
        let &Leaf { tag, root, level, page, word, .. } = leaf;
        Entry { tag, root, level, page, word }
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

    /// Returns whether both translate some address of one space, and a TLB would find both under one tag.
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
            // Entries below a table are judged on their own, and so are tables of lower levels.
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

/// A new entry, and an old one that a TLB may still hold when it fills the new one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryConflict {
    /// The CPU with that TLB.
    pub(crate) cpu: usize,
    /// The new entry's place in a table.
    pub(crate) place: (u32, usize),
    pub(super) new: Entry,
    pub(super) old: Entry,
    pub(crate) old_written: u32,
}

impl EntryConflict {
    /// Returns the root from which both are walked.
    pub(crate) fn root(&self) -> u32 {
        self.new.root
    }

    /// Returns the first page that both translate.
    pub(crate) fn page(&self) -> u64 {
        self.new.page.max(self.old.page)
    }

    /// Returns the frame to which the new entry leads.
    pub(crate) fn frame(&self) -> u32 {
        frame_of(self.new.word)
    }

    /// Returns the old and the new first frame and their number, if equal contents excuse the meeting. They do if both
    /// translations are read-only and only their output addresses differ.
    pub(crate) fn of_equals(&self) -> Option<(u32, u32, u64)> {
        let EntryConflict { new, old, .. } = self;
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

impl fmt::Display for EntryConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (table, index) = self.place;
        let EntryConflict { new, old, .. } = self;
        write!(
            f,
            "break before make: entry {index} of table {table:#x} maps {new} where a TLB may still hold {old}"
        )
    }
}

impl Mmu {
    /// Judges a new entry against a CPU's TLB. The CPU's walker can fill it now: it's at `index` of the table that
    /// `from` points to.
    #[inline]
    pub(super) fn judge_new(&mut self, cpu: usize, from: &Pointer, index: usize, word: u64) {
        let large = from.level > 0 && word & TABLE == 0;
        if self.may_break(large) && word & PRESENT != 0 {
            self.compare_new(cpu, from, index, word);
        }
    }

    /// Returns whether the rule may concern a new entry. If it concerns sizes alone, the new entry must be a `large`
    /// page or the TLB must hold one.
    #[inline]
    fn may_break(&self, large: bool) -> bool {
        match self.breaks {
            Break::Never => false,
            Break::Size => large || self.large,
            Break::Translation => true,
        }
    }

    #[inline(never)]
    fn compare_new(&mut self, cpu: usize, from: &Pointer, index: usize, word: u64) {
        let new = self.entry_of(from, index, word);
        let tlb = &self.tlbs[cpu];
        // A TLB may hold hundreds of leaves of other pages, so we discard those first by a cheap comparison.
        let pages = new.pages();
        let leaves = (tlb.leaves.iter())
            .filter(|leaf| leaf.page < pages.end && pages.start < leaf.page + leaf.pages())
            .map(|leaf| (Entry::of_leaf(leaf), leaf.written));
        let pointers = (tlb.pointers.iter())
            .filter(|pointer| pointer.via != pointer.table)
            .map(|pointer| (Entry::of_pointer(pointer), pointer.written));
        for (old, old_written) in leaves.chain(pointers) {
            if new.meets(&old) && new.contradicts(&old, self.breaks) {
                self.meetings.push(EntryConflict {
                    cpu,
                    place: (from.table, index),
                    new,
                    old,
                    old_written,
                });
            }
        }
    }

    fn entry_of(&self, from: &Pointer, index: usize, word: u64) -> Entry {
        let leaf = word & TABLE == 0 || from.level == 0;
        let global = leaf && self.is_global(from, word);
        Entry {
            tag: if global { GLOBAL_TAG } else { from.tag },
            root: from.root,
            level: from.level,
            page: from.base + index as u64 * Level(from.level).pages(),
            word: word & !ACCESSED,
        }
    }

    /// Returns whether the CPU's TLB may hold an entry that contradicts the table that `from` points to. The table's
    /// own present entries don't count.
    #[inline]
    pub(super) fn may_contradict(&self, cpu: usize, from: &Pointer) -> bool {
        self.may_break(from.level > 0) && self.holds_others(cpu, from)
    }

    #[inline(never)]
    fn holds_others(&self, cpu: usize, from: &Pointer) -> bool {
        let tlb = &self.tlbs[cpu];
        let pages = from.pages();
        let concerns = |tag: u16, root: u32, held: Range<u64>| {
            root == from.root
                && (tag == from.tag || tag == GLOBAL_TAG || self.kernel == Some(root))
                && held.start < pages.end
                && pages.start < held.end
        };
        let stands = |via: u32, level: u8, page: u64, written: u32| {
            let index = Level(level).index(quell::Page(page));
            via == from.table && self.sides.written((via, index)) == written
        };
        self.lags.iter().any(|gone| gone.table == from.table)
            || tlb.leaves.iter().any(|l| {
                concerns(l.tag, l.root, l.pages_of()) && !stands(l.via, l.level, l.page, l.written)
            })
            || tlb.pointers.iter().any(|p| {
                // The pointer to this table and those above it don't count.
                p.level < from.level
                    && concerns(p.tag, p.root, p.pages())
                    && !stands(p.via, p.level + 1, p.base, p.written)
            })
    }

    /// Takes one of the pairs that met, for the judge.
    pub(crate) fn take_meeting(&mut self) -> Option<EntryConflict> {
        self.meetings.pop()
    }
}

#[cfg(test)]
mod tests;
