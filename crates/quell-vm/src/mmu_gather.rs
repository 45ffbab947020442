//! Gathers (Linux's `mmu_gather`): a batch of the engine, and what becomes of what it holds.
//!
//! What a [`MmuGather`] holds is a mapping that was taken out of a table, or a table that was taken
//! out of its parent. After the flush, and not before, the mapping leaves the reverse map and gives
//! its reference up, and the table's frame is freed.

use crate::frames::Frames;
use crate::machine::{Event, Machine};
use crate::process::{Process, SpaceRef};
use crate::rules::VmRules;
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
    batch: Option<Batch<'v, 'm, M, SpaceRef<M>, Held<M>, &'m M::Rules>>,
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
    fn batch(&mut self) -> &mut Batch<'v, 'm, M, SpaceRef<M>, Held<M>, &'m M::Rules> {
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
        let machine = self.frames.machine();
        if !machine.rules().frame_waits_for_flush() {
            release(self.frames, held);
            return self.changed(process, range);
        }
        if !machine.rules().mapping_stays_listed()
            && let Held::Mapping {
                frame,
                process,
                page,
                ..
            } = &held
        {
            self.frames.state(*frame).unmap(process, *page);
        }
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
        let machine = self.frames.machine();
        if !machine.rules().table_waits_for_flush() {
            release(self.frames, Held::Table(table));
            return self
                .batch()
                .changed(SpaceRef(process.clone()), range, Scope::Tables);
        }
        if !machine.rules().walkers_are_flushed() {
            return self
                .batch()
                .unmapped(SpaceRef(process.clone()), range, Held::Table(table));
        }
        self.batch()
            .table_unlinked(SpaceRef(process.clone()), range, Held::Table(table));
    }

    /// Flushes, and releases what was held. The gather may be used again.
    pub(crate) fn flush(&mut self) {
        if let Some(batch) = &mut self.batch {
            for held in batch.finish() {
                release(self.frames, held);
            }
        }
    }
}

impl<M: Machine> Drop for MmuGather<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// What was held is behind its flush.
fn release<M: Machine>(frames: &Frames<'_, M>, held: Held<M>) {
    match held {
        Held::Mapping {
            frame,
            process,
            page,
            reference,
        } => {
            frames.state(frame).unmap(&process, page);
            if reference {
                frames.put(frame);
            }
        }
        Held::Table(frame) => {
            frames.machine().note(Event::TableFreed { frame });
            frames.put(frame);
        }
    }
}
