//! Batches that have a place for one space and contain changes of two.

use super::{BareKernel, Space, leaf_of, root_of};
use quell::{Batch, Frame, InPlace, Page, PageRange, PageSize, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::Relaxed;

type OneSpaceBatch<'k> = Batch<'k, &'k Space, InPlace<Frame>, 1>;

impl<'m> BareKernel<'m> {
    /// Begins a batch of reclaim whose only place belongs to `first`.
    fn crowded<'k>(&'k self, first: usize) -> OneSpaceBatch<'k> {
        let mut batch = (self.engine).batch_of_spaces(Purpose::Reclaim, InPlace::new());
        let elsewhere = PageRange::base(Page(99), 1);
        batch.changed(&self.spaces[first], elsewhere, Scope::Leaf);
        batch
    }

    /// Unmaps pages of `space`, each under its lock, in a batch whose only place belongs to `first`. Gives their
    /// frames to new owners.
    pub fn reclaim_crowded(&self, first: usize, space: usize, pages: &[u64]) {
        self.hw
            .say(|| format!("reclaim pages {pages:x?} of {space}, behind {first}"));
        let mut batch = self.crowded(first);
        for &page in pages {
            self.lock(space);
            if let Some(frame) = self.clear(space, page) {
                batch.unmapped(&self.spaces[space], PageRange::base(Page(page), 1), frame);
            }
            self.unlock(space);
            batch.unlocked();
        }
        for frame in batch.finish() {
            self.give_away(frame);
        }
    }

    /// Unmaps a page whose entry another CPU may have cleared, like [`BareKernel::unmap`]. It makes the pending flushes
    /// after it has dropped the lock. So other entries may be cleared meanwhile, as in a kernel with a lock for each
    /// table.
    pub fn unmap_cleared(&self, space: usize, page: u64) {
        self.hw
            .say(|| format!("unmap({space}, {page:#x}), cleared"));
        self.lock(space);
        let cleared = self.entry(space, page).load(Relaxed) == 0;
        self.unlock(space);
        if cleared {
            self.engine.flush_pending(&self.spaces[space]);
            self.returned_unmap(space, PageRange::base(Page(page), 1));
        }
    }

    /// Frees a leaf table like [`BareKernel::free_table`], in a batch whose only place belongs to `first`.
    pub fn free_table_crowded(&self, first: usize, space: usize, page: u64) {
        self.hw
            .say(|| format!("frees the leaf table of {page:#x} of {space}, behind {first}"));
        let mut batch = self.crowded(first);
        self.lock(space);
        let table = leaf_of(space, page);
        let range = PageRange::one(Page(page & !511), PageSize::Large);
        self.hw.table(root_of(space))[(page / 512) as usize].swap(0, super::ENTRY_ORDER);
        batch.table_unlinked(&self.spaces[space], range, table);
        self.unlock(space);
        for table in batch.finish() {
            self.hw.note(Event::TableFreed { frame: table });
        }
    }

    /// Unmaps pages of the kernel's half, in a batch whose only place belongs to `first`. Gives their frames to new
    /// owners.
    pub fn unmap_own_crowded(&self, first: usize, pages: &[u64]) {
        self.hw
            .say(|| format!("unmap own {pages:x?}, behind {first}"));
        let mut batch = self.crowded(first);
        for &page in pages {
            self.lock_own();
            if let Some(frame) = self.take_own(page) {
                let range = PageRange::base(Page(page), 1);
                batch.unmapped(self.own_space(page), range, frame);
            }
            self.unlock_own();
        }
        for frame in batch.finish() {
            self.give_away(frame);
        }
    }
}
