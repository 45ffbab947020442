//! Empties a page-cache slot before its page's deferred flush has a stamp.
//!
//! A kernel does this if it unmaps many pages, each under its own lock, and then defers the flush of all of them. The
//! page is *pending* from before the slot is emptied until the frame's deferred flush has its stamp. A CPU that fills
//! the slot meanwhile finds no stamp, so it flushes the whole space.

use super::BareKernel;
use quell::{Frame, Page, PageRange, Purpose, Scope, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The flag that marks the page as pending.
const PENDING: usize = 0;
/// The flag that marks the slot as empty.
const EMPTY: usize = 1;

impl BareKernel<'_> {
    /// Removes a clean page from space and file, drops all locks, defers the flush.
    pub fn reclaim_then_defer(&self, space: usize, page: u64) {
        self.hw.say(|| format!("reclaim page {page:#x} of {space}, then defer the flush"));
        let mut batch = self.engine.batch(Purpose::Lazy);
        self.lock(space);
        let frame = self.clear(space, page);
        if frame.is_some() {
            let range = PageRange::base(Page(page), 1);
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        }
        self.unlock(space);
        let Some(frame) = frame else {
            return;
        };
        self.flags[PENDING].store(1, Relaxed);
        self.flags[EMPTY].store(1, Release);
        batch.hold(frame);
        self.free_deferred(frame, batch.finish_deferred());
        self.flags[PENDING].store(0, Release);
    }

    /// Fills the slot with another frame, if it is empty, and maps that frame. Returns whether the slot was empty.
    pub fn fill_slot(&self, space: usize, page: u64, old: Frame, new: Frame) -> bool {
        self.hw.say(|| format!("fill the slot of {page:#x}"));
        if self.flags[EMPTY].load(Acquire) == 0 {
            return false;
        }
        // We read this before the deferred flush: a CPU that finds the page no longer pending also finds its stamp.
        if self.flags[PENDING].load(Acquire) == 1 {
            self.flush_all(space);
        } else {
            self.engine.flush_before_refill(self.deferred_flush(old), &self.spaces[space]);
        }
        self.lock(space);
        self.map(space, page, new, false);
        self.unlock(space);
        true
    }
}
