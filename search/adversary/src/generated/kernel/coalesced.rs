//! Flushes that several tasks share.
//!
//! A task that unmaps its page flushes after it has dropped the space's lock, so several such tasks can share flushes.
//! Later observers can't see such a flush. So this kernel counts outstanding ones under the lock, as Linux's
//! `tlb_flush_pending` does, and a CPU that takes the lock meanwhile flushes first. A task that shares a flush doesn't
//! flush first, because it relies on no entry of another task. A space isn't retired while one of its flushes is
//! outstanding.

use super::state::{Kernel, OwnedFrame, Space, peek, set};
use crate::context;
use crate::tables;
use quell::{Frame, Page, PageRange, Scope, Word};
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

impl Kernel<'_> {
    /// Unmaps a page that doesn't belong to a file, and shares the flush.
    pub(super) fn unmap_coalesced(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() || self.here().masked {
            return;
        }
        let began = context::with(|core| core.now);
        if self.join(slot).is_none() {
            return;
        }
        if let Some(space) = self.lock_to_share(slot) {
            self.break_block(slot, page);
            let old = self
                .entry(slot, page)
                .filter(|entry| entry.load(Relaxed) & tables::PRESENT != 0)
                .map(|entry| Frame(entry.swap(0, AcqRel) >> 12));
            let sharing = &self.sharing[slot];
            set(sharing, peek(sharing) + 1);
            self.unlock(slot);
            self.engine.this_cpu().flush_coalesced(space);
            set(sharing, peek(sharing) - 1);
            if let Some(old) = old {
                let range = PageRange::base(Page(page), 1);
                self.returned(slot, range, began, None);
                self.release(OwnedFrame::Single(old));
            }
        }
        self.quit(slot);
    }

    /// Flushes if a shared flush is outstanding. Called before code relies on an entry of a space whose lock was just
    /// taken.
    pub(super) fn flush_pending_shared(&self, slot: usize, space: &Space) {
        if peek(&self.sharing[slot]) != 0 {
            self.engine.this_cpu().flush(space, None, Scope::Tables);
        }
    }
}
