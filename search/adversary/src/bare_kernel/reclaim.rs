//! Reclaims pages, with a flush or lazily, and gives their frames to new owners.

use super::BareKernel;
use crate::coverage::MachineEvent;
use crate::tables;
use quell::{DeferredFlush, Frame, Outcome, Page, PageRange, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The flag that marks a page as *pending*: from before its page-cache slot is emptied until its deferred flush has a
/// stamp.
const PENDING: usize = 0;
/// The flag that marks the slot as empty.
const EMPTY: usize = 1;

impl BareKernel<'_> {
    /// Unmaps a page from several spaces, as reclaim does, and waits for the flush.
    pub fn reclaim(&self, spaces: &[usize], page: u64) -> Option<Frame> {
        self.hw.say(|| format!("reclaim page {page:#x} of {spaces:?}"));
        let mut batch = self.engine.batch(Purpose::Reclaim);
        let mut taken = None;
        for &space in spaces {
            self.lock(space);
            if let Some(frame) = self.clear(space, page) {
                taken = Some(frame);
                batch.changed(&self.spaces[space], PageRange::base(Page(page), 1), Scope::Leaf);
            }
            self.unlock(space);
            batch.unlocked();
        }
        if let Some(frame) = taken {
            batch.hold(frame);
        }
        batch.finish().next()
    }

    /// Unmaps a clean page, and defers the flush if the policy allows it.
    pub fn reclaim_lazily(&self, space: usize, page: u64) -> &Self {
        self.take_lazily(&[space], page);
        self
    }

    /// Unmaps a clean page from several spaces, and defers the flush if the policy allows it.
    ///
    /// If so, the returned frame has a deferred flush.
    pub fn take_lazily(&self, spaces: &[usize], page: u64) -> Option<Frame> {
        self.hw.say(|| format!("reclaim page {page:#x} of {spaces:?} lazily"));
        for &space in spaces {
            self.lock(space);
        }
        let mut batch = self.engine.batch(Purpose::Lazy);
        let mut taken = None;
        for &space in spaces {
            let old = self.entry(space, page).load(Relaxed);
            if old & tables::PRESENT == 0 {
                continue;
            }
            if taken.is_none() {
                taken = Some(Frame(old >> 12));
                self.deferred_flush(Frame(old >> 12)).begin();
            }
            self.clear(space, page);
            let range = PageRange::base(Page(page), 1);
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        }
        if let Some(frame) = taken {
            batch.hold(frame);
            self.free_deferred(frame, batch.finish_deferred());
        }
        for &space in spaces {
            self.unlock(space);
        }
        taken
    }

    /// Frees the leaf table of `page` and unmaps page 0 of another space, in one batch of lazy unmap.
    ///
    /// A freed table's flush can't be deferred, whatever else is in the batch.
    pub fn free_table_lazily(&self, space: usize, page: u64, other: usize) {
        self.hw
            .say(|| format!("frees the leaf table of {page:#x}, and reclaims page 0 of {other}"));
        let deferred_flush = DeferredFlush::new();
        deferred_flush.begin();
        let mut batch = self.engine.batch(Purpose::Lazy);
        self.lock(space);
        let (range, table) = self.unlink(space, page);
        batch.table_unlinked(&self.spaces[space], range, table);
        self.unlock(space);
        self.lock(other);
        self.clear(other, 0);
        batch.changed(&self.spaces[other], PageRange::base(Page(0), 1), Scope::Leaf);
        self.unlock(other);
        if let Outcome::Deferred(frames) = batch.finish_deferred() {
            deferred_flush.defer(frames.stamp());
            drop(frames);
            let _ = self.engine.flush_before_reuse(&deferred_flush);
        }
        self.hw.note(Event::TableFreed { frame: table });
    }

    /// Makes all deferred flushes.
    pub fn flush_deferred(&self) -> &Self {
        self.engine.flush_deferred();
        self
    }

    /// Frees a frame whose flush may be deferred.
    pub(super) fn free_deferred(&self, frame: Frame, outcome: Outcome<'_>) {
        // From the moment when the flush is recorded as deferred, any CPU may reuse the frame.
        self.hw.note(Event::FrameFreed { frame, frames: 1 });
        match outcome {
            Outcome::Deferred(deferred) => self.deferred_flush(frame).defer(deferred.stamp()),
            Outcome::Flushed(_) => self.deferred_flush(frame).clear(),
        }
    }

    /// Unmaps, with a flush, a page that was reinstated in only one space.
    ///
    /// It still counts as mapped in the other space, because the frame no longer has a deferred flush.
    pub fn reclaim_reinstated(&self, mapped: usize, left: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("reclaim page {page:#x} of {mapped}, and its old entry in {left}"));
        let mut batch = self.engine.batch(Purpose::Reclaim);
        let range = PageRange::base(Page(page), 1);
        self.lock(mapped);
        let frame = self.clear(mapped, page);
        if let Some(frame) = frame {
            batch.unmapped(&self.spaces[mapped], range, frame);
            // [mutant VmIgnoresMarker]
            batch.changed(&self.spaces[left], range, Scope::Leaf);
        }
        self.unlock(mapped);
        batch.finish().next()
    }

    /// Gives a frame that has a deferred flush to a new owner, if no other CPU has taken it.
    pub fn flush_before_reuse(&self, frame: Option<Frame>) -> &Self {
        let Some(frame) = frame else { return self };
        self.hw.say(|| format!("flush_before_reuse frame {:#x}", frame.0));
        if self.engine.flush_before_reuse(self.deferred_flush(frame)).is_some() {
            self.hw.happen(MachineEvent::Reusable);
            self.own(frame);
        }
        self
    }

    /// Reinstates a frame for its page, unless a CPU has reused it.
    pub fn reinstate(&self, space: usize, page: u64, frame: Option<Frame>) -> &Self {
        let Some(frame) = frame else { return self };
        self.hw.say(|| format!("reinstate frame {:#x}", frame.0));
        self.lock(space);
        if self.deferred_flush(frame).reinstate(&self.engine) {
            self.hw.note(Event::FrameReinstated { frame });
            self.map(space, page, frame, false);
        }
        self.unlock(space);
        self
    }

    /// Writes an entry that used to map `old`, if it is empty. Returns whether it was empty.
    pub fn refill(&self, space: usize, page: u64, old: Frame, new: Frame) -> bool {
        self.hw.say(|| format!("refill({space}, {page:#x})"));
        self.lock(space);
        let empty = self.entry(space, page).load(Relaxed) == 0;
        if empty {
            self.engine.flush_before_refill(self.deferred_flush(old), &self.spaces[space]);
            self.map(space, page, new, false);
        }
        self.unlock(space);
        empty
    }

    /// Removes a clean page from space and file, drops all locks, and then defers the flush.
    ///
    /// A kernel does this if it unmaps many pages, each under its own lock. A CPU that fills the page's slot before the
    /// deferred flush has its stamp flushes the whole space.
    pub fn reclaim_then_defer(&self, space: usize, page: u64) -> &Self {
        self.hw.say(|| format!("reclaim page {page:#x} of {space}, then defer the flush"));
        let mut batch = self.engine.batch(Purpose::Lazy);
        self.lock(space);
        let frame = self.clear(space, page);
        if frame.is_some() {
            let range = PageRange::base(Page(page), 1);
            batch.changed(&self.spaces[space], range, Scope::Leaf);
        }
        self.unlock(space);
        let Some(frame) = frame else { return self };
        self.flags[PENDING].store(1, Relaxed);
        self.flags[EMPTY].store(1, Release);
        batch.hold(frame);
        self.free_deferred(frame, batch.finish_deferred());
        self.flags[PENDING].store(0, Release);
        self
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
