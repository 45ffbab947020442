//! Gathers of the manager: the engine's batches, and what becomes of what they held.
//!
//! What a [`Gather`] holds is a mapping that was taken out of a table, or a table that was taken out
//! of its parent. After the flush, and not before, the mapping leaves the reverse map and gives its
//! reference up, and the table's frame is freed.

use crate::machine::{Event, Machine};
use crate::process::{Process, SpaceRef};
use crate::vm::Vm;
use alloc::sync::Arc;
use quell::mutant::Mutant;
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
pub(crate) struct Gather<'v, 'm, M: Machine> {
    vm: &'v Vm<'m, M>,
    purpose: Purpose,
    batch: Option<Batch<'v, 'm, M, SpaceRef<M>, Held<M>>>,
}

impl<'v, 'm, M: Machine> Gather<'v, 'm, M> {
    pub(crate) fn new(vm: &'v Vm<'m, M>, purpose: Purpose) -> Self {
        Gather {
            vm,
            purpose,
            batch: None,
        }
    }

    /// The batch, with room for one more.
    fn batch(&mut self) -> &mut Batch<'v, 'm, M, SpaceRef<M>, Held<M>> {
        if self.batch.as_ref().is_some_and(Batch::is_full) {
            self.flush();
        }
        let (vm, purpose) = (self.vm, self.purpose);
        self.batch.get_or_insert_with(|| vm.engine.batch(purpose))
    }

    /// An entry lost rights, under the lock of its table.
    pub(crate) fn changed(&mut self, process: &Arc<Process<M>>, range: PageRange) {
        self.batch()
            .changed(SpaceRef(process.clone()), range, Scope::Leaf);
    }

    /// An entry was cleared, under the lock of its table.
    pub(crate) fn unmapped(&mut self, process: &Arc<Process<M>>, range: PageRange, held: Held<M>) {
        if self.vm.machine().mutant(Mutant::VmFreesBeforeFlush) {
            self.vm.release(held);
            return self.changed(process, range);
        }
        if self.vm.machine().mutant(Mutant::VmUnlinksBeforeFlush)
            && let Held::Mapping {
                frame,
                process,
                page,
                ..
            } = &held
        {
            self.vm
                .frames
                .info(*frame)
                .state(self.vm.machine())
                .unmap(process, *page);
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
        let machine = self.vm.machine();
        if machine.mutant(Mutant::VmFreesTableBeforeFlush) {
            self.vm.release(Held::Table(table));
            return self
                .batch()
                .changed(SpaceRef(process.clone()), range, Scope::Tables);
        }
        if machine.mutant(Mutant::VmTableFlushLeafOnly) {
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
                self.vm.release(held);
            }
        }
    }
}

impl<M: Machine> Drop for Gather<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<M: Machine> Vm<'_, M> {
    /// What was held is behind its flush.
    fn release(&self, held: Held<M>) {
        match held {
            Held::Mapping {
                frame,
                process,
                page,
                reference,
            } => {
                self.frames
                    .info(frame)
                    .state(self.machine())
                    .unmap(&process, page);
                if reference {
                    self.put(frame);
                }
            }
            Held::Table(frame) => {
                self.machine().note(Event::TableFreed { frame });
                self.put(frame);
            }
        }
    }
}
