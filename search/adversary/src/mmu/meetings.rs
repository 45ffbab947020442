//! Finds translations of one address that meet in a TLB; [`breaks`](super::breaks) defines the forbidden pairs.

use super::Mmu;
use super::breaks::{Entry, EntryConflict};
use super::held::{GLOBAL_TAG, Pointer};
use crate::tables::{ACCESSED, PRESENT, TABLE};
use quell::Break;
use quell_vm::machine::Level;
use std::ops::Range;

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
