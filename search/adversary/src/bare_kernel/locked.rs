//! Flushes under a lock for which other CPUs spin, with and without a batch, and starts flushes without waiting.

use super::BareKernel;
use quell::{Frame, Hardware, Page, PageRange, Purpose, Scope, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

impl BareKernel<'_> {
    /// Takes the lock of a space's tables with interrupts off, and drops it. Another CPU may hold it while it flushes.
    pub fn pass_lock_masked(&self, space: usize) {
        let were_on = self.hw.mask_interrupts();
        while self.locks[space].compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            self.engine.this_cpu().poll();
            self.hw.relax();
        }
        self.unlock(space);
        self.hw.restore_interrupts(were_on);
    }

    /// Unmaps a page like [`BareKernel::unmap`], but flushes before it drops the lock.
    pub fn unmap_locked(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), locked"));
        self.lock(space);
        let mut batch = self.engine.batch(Purpose::Call);
        if let Some(frame) = self.clear(space, page) {
            batch.unmapped(&self.spaces[space], PageRange::base(Page(page), 1), frame);
        }
        let frame = batch.finish().next();
        self.unlock(space);
        self.returned_unmap(space, PageRange::base(Page(page), 1));
        frame
    }

    /// Unmaps a page like [`BareKernel::unmap`], but flushes without a batch, after dropping the lock.
    pub fn unmap_at_once(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), without a batch"));
        let range = PageRange::base(Page(page), 1);
        self.lock(space);
        let frame = self.clear(space, page);
        self.unlock(space);
        (self.engine).this_cpu().flush(&self.spaces[space], Some(range), Scope::Leaf);
        self.returned_unmap(space, range);
        frame
    }

    /// Unmaps a page like [`BareKernel::unmap`], but flushes the whole space after dropping the lock.
    ///
    /// Several CPUs that do so at the same time share one flush (a coalesced flush).
    pub fn unmap_coalesced(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("unmap({space}, {page:#x}), with a coalesced flush"));
        let range = PageRange::base(Page(page), 1);
        self.lock(space);
        let frame = self.clear(space, page);
        self.unlock(space);
        self.engine.this_cpu().flush_coalesced(&self.spaces[space]);
        self.returned_unmap(space, range);
        frame
    }

    /// Flushes a space, or shares a flush of it.
    pub fn flush_coalesced(&self, space: usize) {
        self.hw.say(|| format!("flush({space}), coalesced"));
        self.engine.this_cpu().flush_coalesced(&self.spaces[space]);
    }

    /// Unmaps a page like [`BareKernel::unmap`], but doesn't wait in the engine.
    ///
    /// It starts the flush, and polls it whenever a target has answered.
    pub fn unmap_started(&self, space: usize, page: u64) -> Option<Frame> {
        self.hw.say(|| format!("starts to unmap({space}, {page:#x})"));
        let mut batch = self.engine.batch(Purpose::Call);
        self.report_unmapped(space, page, &mut batch);
        let mut flight = batch.start();
        loop {
            let rung = self.hw.bell().load(Acquire);
            if flight.is_done() {
                break;
            }
            while self.hw.bell().load(Acquire) == rung {
                self.hw.relax();
            }
        }
        let frame = flight.finish().next();
        self.returned_unmap(space, PageRange::base(Page(page), 1));
        frame
    }
}
