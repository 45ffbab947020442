//! Maps blocks of contiguous entries, and splits them before one of their entries changes.
//!
//! Both happen under the space's lock. Calls that remove a whole block needn't split it.

use super::mapping::entry_order;
use super::state::Kernel;
use super::state::SINGLES;
use crate::generated::program::{PAGES, WINDOW};
use crate::tables::{self, BLOCK, CONTIGUOUS};
use quell::{Frame, Page, PageRange, Word};
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

/// A set of as many adjacent frames as a block has.
const RUN: u64 = (1 << BLOCK) - 1;

fn block_of(page: u64) -> PageRange {
    PageRange::base(Page(page & !(BLOCK - 1)), BLOCK)
}

fn pages(of: PageRange) -> Range<u64> {
    of.start.0..of.end().0
}

impl Kernel<'_> {
    /// Returns the block of a page, if the page's entry is part of one.
    pub(super) fn block_at(&self, slot: usize, page: u64) -> Option<PageRange> {
        let contiguous = tables::PRESENT | CONTIGUOUS;
        let held = self.entry(slot, page)?.load(Relaxed);
        (held & contiguous == contiguous).then(|| block_of(page))
    }

    pub(super) fn map_contiguous(&self, slot: usize, page: u64) {
        let block = block_of(page);
        let usable = |page: u64| PAGES.contains(&page) && Self::file_at(page).is_none();
        if !self.hw.kind().blocks || page >= 2 * WINDOW || !pages(block).all(usable) {
            return;
        }
        let Some(space) = self.lock(slot) else { return };
        let empty =
            |page: u64| self.entry_made(slot, page).is_some_and(|entry| entry.load(Relaxed) == 0);
        if pages(block).all(empty)
            && let Some(first) = self.take_run()
        {
            self.make_ready(space, 0);
            // A TLB may fill any page of the block as soon as one entry is present.
            for (page, frame) in pages(block).zip(first.0..) {
                self.fill(Frame(frame), page + 1);
            }
            for (page, frame) in pages(block).zip(first.0..) {
                if let Some(entry) = self.entry(slot, page) {
                    let word = Self::leaf_word(Frame(frame), true) | CONTIGUOUS;
                    entry.store(word, entry_order());
                }
            }
        }
        self.unlock(slot);
    }

    /// Prepares the change of one page's entry. If it's part of a block, afterwards each entry of the block is
    /// independent.
    pub(super) fn break_block(&self, slot: usize, page: u64) {
        // We clear and flush the whole block, for the reason in `BareKernel::unmap_from_block`. [mutant
        // BlockBrokenInPart]
        let Some(block) = self.block_at(slot, page) else { return };
        let mut words = [0; BLOCK as usize];
        for (word, page) in words.iter_mut().zip(pages(block)) {
            if let Some(entry) = self.entry(slot, page) {
                *word = entry.swap(0, AcqRel);
            }
        }
        self.flush_now(self.space(slot), &[block]);
        for (word, page) in words.into_iter().zip(pages(block)) {
            if let Some(entry) = self.entry(slot, page) {
                entry.store(word & !CONTIGUOUS, Release);
            }
        }
    }

    /// Takes free frames for a block, aligned as it is. Returns the first of them.
    fn take_run(&self) -> Option<Frame> {
        let word = &self.free_singles;
        let mut free = word.load(Relaxed);
        loop {
            let fits = |index: &u64| {
                self.layout.single(*index).0.is_multiple_of(BLOCK) && free >> index & RUN == RUN
            };
            let index = (0..=SINGLES - BLOCK).find(fits)?;
            let left = free & !(RUN << index);
            match word.compare_exchange(free, left, AcqRel, Relaxed) {
                Ok(_) => return Some(self.layout.single(index)),
                Err(now) => free = now,
            }
        }
    }
}
