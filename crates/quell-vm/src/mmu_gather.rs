//! Gathers (Linux's `mmu_gather`): a batch of the engine, and what becomes of what it holds.
//!
//! What a [`MmuGather`] holds is a mapping that was taken out of a table, or a table that was taken
//! out of its parent. After the flush, and not before, the mapping leaves the reverse map and gives
//! its reference up, and the table's frame is freed ([`crate::rules`]).

use crate::frames::Frames;
use crate::machine::{Event, Machine};
use crate::process::{Process, SpaceBatch, SpaceRef};
use crate::rules::{Moment, VmRules};
use alloc::sync::Arc;
use quell::{Batch, Frame, Page, PageRange, Purpose, Scope};

/// What waits for a flush.
pub(crate) enum Held<M: Machine> {
    /// An entry that mapped the block, and whether it held a reference (a marker holds none).
    Mapping {
        frame: Frame,
        process: Arc<Process<M>>,
        page: Page,
        reference: bool,
    },
    /// A page-table page.
    Table(Frame),
}

/// Entries that changed, to be flushed together. Dropped, it flushes and releases.
pub(crate) struct MmuGather<'v, 'm, M: Machine> {
    frames: &'v Frames<'m, M>,
    purpose: Purpose,
    batch: Option<SpaceBatch<'v, 'm, M, Held<M>>>,
}

impl<'v, 'm, M: Machine> MmuGather<'v, 'm, M> {
    pub(crate) fn new(frames: &'v Frames<'m, M>, purpose: Purpose) -> Self {
        MmuGather {
            frames,
            purpose,
            batch: None,
        }
    }

    /// The batch, with room for one more.
    fn batch(&mut self) -> &mut SpaceBatch<'v, 'm, M, Held<M>> {
        if self.batch.as_ref().is_some_and(Batch::is_full) {
            self.flush();
        }
        let (frames, purpose) = (self.frames, self.purpose);
        self.batch
            .get_or_insert_with(|| frames.engine().batch(purpose))
    }

    /// An entry lost rights, under the lock of its table.
    pub(crate) fn changed(&mut self, process: &Arc<Process<M>>, range: PageRange) {
        self.batch()
            .changed(SpaceRef(process.clone()), range, Scope::Leaf);
    }

    /// An entry was cleared, under the lock of its table.
    pub(crate) fn unmapped(&mut self, process: &Arc<Process<M>>, range: PageRange, held: Held<M>) {
        release(self.frames, &held, Moment::Cleared);
        self.batch()
            .unmapped(SpaceRef(process.clone()), range, held);
    }

    /// A table was taken out of its parent, under the locks of both.
    pub(crate) fn table_unlinked(
        &mut self,
        process: &Arc<Process<M>>,
        range: PageRange,
        table: Frame,
    ) {
        let held = Held::Table(table);
        release(self.frames, &held, Moment::Cleared);
        let scope = self.frames.machine().rules().scope_of_table();
        let batch = self.batch();
        batch.hold(held);
        batch.changed(SpaceRef(process.clone()), range, scope);
    }

    /// Flushes, and releases what was held. The gather may be used again.
    pub(crate) fn flush(&mut self) {
        if let Some(batch) = &mut self.batch {
            for held in batch.finish() {
                release(self.frames, &held, Moment::Flushed);
            }
        }
    }
}

impl<M: Machine> Drop for MmuGather<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Releases what an entry that was taken out held, as far as that may be done at this moment.
#[inline]
fn release<M: Machine>(frames: &Frames<'_, M>, held: &Held<M>, now: Moment) {
    let rules = frames.machine().rules();
    match held {
        Held::Mapping {
            frame,
            process,
            page,
            reference,
        } => {
            if rules.leaves_reverse_map(now) {
                frames.state(*frame).unmap(process, *page);
            }
            if *reference && rules.releases_frame(now) {
                frames.put(*frame);
            }
        }
        Held::Table(frame) => {
            if rules.releases_table(now) {
                frames.machine().note(Event::TableFreed { frame: *frame });
                frames.put(*frame);
            }
        }
    }
}
