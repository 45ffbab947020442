//! Maps, splits and unmaps blocks of pages.
//!
//! A block is an aligned group of entries that map adjacent frames in the same way and are marked as such (Arm's
//! contiguous bit, RISC-V's Svnapot). [`mmu`](crate::mmu) defines how a TLB may cache it. The engine sees only ranges;
//! the kernel decides which entries to clear and which pages to report.

use super::{BareKernel, FIRST, leaf_word};
use crate::tables::{BLOCK, CONTIGUOUS};
use quell::{Frame, Page, PageRange, Purpose, Scope, Word};
use std::sync::atomic::Ordering::Release;

const _: () = assert!(FIRST.is_multiple_of(BLOCK));

impl BareKernel<'_> {
    /// Maps the block that begins with `page` to the frames from `frame` on. Its entries were empty.
    pub fn map_block(&self, space: usize, page: u64, frame: Frame) {
        assert!(page.is_multiple_of(BLOCK) && frame.0.is_multiple_of(BLOCK));
        for at in 0..BLOCK {
            let word = leaf_word(Frame(frame.0 + at), true) | CONTIGUOUS;
            self.entry(space, page + at).store(word, Release);
        }
    }

    /// Unmaps one page of a block and keeps the others as single pages. Returns the page's frame.
    pub fn unmap_from_block(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), one page of a block"));
        let one = PageRange::base(Page(page), 1);
        self.lock(space);
        // A TLB may fill every page of the block from any remaining entry. So we clear and flush all entries, then
        // rewrite the remaining ones (break before make). [mutant BlockBrokenInPart]
        let broken = block_of(page);
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        let frames = self.clear_block(space, broken);
        batch.changed(&self.spaces[space], broken, Scope::Leaf);
        drop(batch.finish());
        // We still hold the lock, so nobody finds the other pages absent.
        let mut gone = None;
        for (at, frame) in (broken.start.0..).zip(frames) {
            match frame {
                Some(frame) if at == page => gone = Some(frame),
                Some(frame) => _ = self.map(space, at, frame, true),
                None => {}
            }
        }
        self.unlock(space);
        self.returned_unmap(space, one);
        gone
    }

    /// Unmaps the block that begins with `page`, and gives its frames to new owners.
    pub fn unmap_block(&self, space: usize, page: u64) {
        self.hw.say(|| format!("unmap({space}, {page:#x}), a whole block"));
        let block = block_of(page);
        self.lock(space);
        let mut batch = self.engine.batch::<_, Frame>(Purpose::Call);
        let frames = self.clear_block(space, block);
        // We report the whole block, because a TLB that caches its pages separately drops only the pages that an
        // invalidation names. [mutant BlockReportedAsPage]
        batch.changed(&self.spaces[space], block, Scope::Leaf);
        self.unlock(space);
        drop(batch.finish());
        self.returned_unmap(space, block);
        frames.into_iter().for_each(|frame| _ = self.give_away(frame));
    }

    /// Clears the entries of a block, or of some of its pages. Returns the frames that they mapped.
    fn clear_block(&self, space: usize, pages: PageRange) -> [Option<Frame>; BLOCK as usize] {
        let mut frames = [None; BLOCK as usize];
        for (frame, page) in frames.iter_mut().zip(pages.start.0..).take(pages.pages as usize) {
            *frame = self.clear(space, page);
        }
        frames
    }
}

/// Returns the block that contains a page.
fn block_of(page: u64) -> PageRange {
    PageRange::base(Page(page & !(BLOCK - 1)), BLOCK)
}
