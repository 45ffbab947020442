//! Uses batches that overflow, and batches that two CPUs use.
//!
//! A batch overflows if it has room for one space and gets changes of two.

use super::{BareKernel, Space};
use quell::{Batch, Frame, FrameArray, Page, PageRange, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::Relaxed;

type OneSpaceBatch<'k> = Batch<'k, &'k Space, FrameArray<Frame>, 1>;

/// The signals of CPUs that use one batch.
const LENT: usize = 0;
const RETURNED: usize = 1;

impl<'m> BareKernel<'m> {
    /// Begins a batch of reclaim whose only place belongs to `first`.
    fn crowded<'k>(&'k self, first: usize) -> OneSpaceBatch<'k> {
        let mut batch = (self.engine).batch_of_spaces(Purpose::Reclaim, FrameArray::new());
        let elsewhere = PageRange::base(Page(99), 1);
        batch.changed(&self.spaces[first], elsewhere, Scope::Leaf);
        batch
    }

    /// Unmaps pages of `space` in a batch that has room only for the space `first`.
    ///
    /// Each page is unmapped under its lock. The frames get new owners.
    pub fn reclaim_crowded(&self, first: usize, space: usize, pages: &[u64]) {
        self.hw.say(|| format!("reclaim pages {pages:x?} of {space}, in a batch full of {first}"));
        let mut batch = self.crowded(first);
        for &page in pages {
            self.reclaim_into(&mut batch, space, page);
            batch.unlocked();
        }
        self.finish_reclaim(&mut batch);
    }

    /// Unmaps a page whose entry another CPU may have cleared already.
    ///
    /// Otherwise it's like [`BareKernel::unmap`], but makes the pending flushes after it has dropped the lock. So other
    /// entries may be cleared meanwhile, as in a kernel with a lock for each table.
    pub fn unmap_cleared(&self, space: usize, page: u64) -> &Self {
        self.hw.say(|| format!("unmap({space}, {page:#x}), if its entry is cleared"));
        self.lock(space);
        let cleared = self.entry(space, page).load(Relaxed) == 0;
        self.unlock(space);
        if cleared {
            self.engine.flush_pending(&self.spaces[space]);
            self.returned_unmap(space, PageRange::base(Page(page), 1));
        }
        self
    }

    /// Unmaps a page under the tables' lock, for a batch of reclaim.
    fn reclaim_into<'k>(&'k self, batch: &mut OneSpaceBatch<'k>, space: usize, page: u64) {
        self.lock(space);
        if let Some(frame) = self.clear(space, page) {
            batch.unmapped(&self.spaces[space], PageRange::base(Page(page), 1), frame);
        }
        self.unlock(space);
    }

    /// Ends a batch, and gives the frames to new owners.
    fn finish_reclaim(&self, batch: &mut OneSpaceBatch<'_>) {
        for frame in batch.finish() {
            self.give_away(Some(frame));
        }
    }

    /// Lends a batch to another CPU, until that CPU returns it.
    fn lend(&self, batch: &mut OneSpaceBatch<'_>) {
        self.lent.set((&raw mut *batch).cast());
        self.tell(LENT);
        self.wait_for(RETURNED);
    }

    /// Unmaps a page of `space` in a batch with room only for `first`. Lends the batch.
    ///
    /// That happens when a thread with an open batch moves to another CPU. This CPU ends the batch, unless the other
    /// CPU has ended it.
    pub fn lend_batch(&self, first: usize, space: usize, page: u64) {
        self.hw.say(|| {
            format!("reclaim page {page:#x} of {space}, in a batch full of {first}, and lend it")
        });
        let mut batch = self.crowded(first);
        self.reclaim_into(&mut batch, space, page);
        self.lend(&mut batch);
        self.finish_reclaim(&mut batch);
    }

    /// Unmaps two pages of `space` in a batch, which another CPU uses in between. This CPU ends the batch.
    pub fn lend_between(&self, space: usize, [before, after]: [u64; 2]) {
        self.hw.say(|| {
            format!("reclaim pages {before:#x} and {after:#x}, and lend the batch between")
        });
        let mut batch = self.crowded(space);
        self.reclaim_into(&mut batch, space, before);
        self.lend(&mut batch);
        self.reclaim_into(&mut batch, space, after);
        self.finish_reclaim(&mut batch);
    }

    /// Unmaps pages of `space` in another CPU's batch, and returns the batch to that CPU.
    ///
    /// If `ends` is set, it ends the batch first.
    pub fn use_lent_batch(&self, space: usize, pages: &[u64], ends: bool) {
        self.wait_for(LENT);
        self.hw.say(|| format!("reclaim pages {pages:x?} of {space}, in a lent batch"));
        // SAFETY: the lender keeps the batch and does not use it until `RETURNED`.
        let batch = unsafe { &mut *self.lent.get().cast::<OneSpaceBatch<'_>>() };
        for &page in pages {
            self.reclaim_into(batch, space, page);
        }
        if ends {
            self.finish_reclaim(batch);
        }
        self.tell(RETURNED);
    }

    /// Frees a leaf table like [`BareKernel::free_table`], in a batch with room only for `first`.
    ///
    /// Afterwards it unmaps page 0 in the same batch, which is a smaller change.
    pub fn free_table_crowded(&self, first: usize, space: usize, page: u64) {
        self.hw.say(|| {
            format!("frees the leaf table of {page:#x} of {space}, in a batch full of {first}")
        });
        let mut batch = self.crowded(first);
        self.lock(space);
        let (range, table) = self.unlink(space, page);
        batch.table_unlinked(&self.spaces[space], range, table);
        self.unlock(space);
        self.reclaim_into(&mut batch, space, 0);
        for frame in batch.finish() {
            match frame == table {
                true => self.hw.note(Event::TableFreed { frame: table }),
                false => _ = self.give_away(Some(frame)),
            }
        }
    }

    /// Unmaps kernel pages, and space 1's page 0, in a batch with room for `first`.
    ///
    /// The frames get new owners.
    pub fn unmap_own_crowded(&self, first: usize, pages: &[u64]) {
        self.hw.say(|| format!("unmap kernel pages {pages:x?}, in a batch full of {first}"));
        let mut batch = self.crowded(first);
        for &page in pages {
            self.lock_own();
            if let Some(frame) = self.take_own(page) {
                let range = PageRange::base(Page(page), 1);
                batch.unmapped(self.own_space(page), range, frame);
            }
            self.unlock_own();
        }
        self.reclaim_into(&mut batch, 1, 0);
        self.finish_reclaim(&mut batch);
    }
}
