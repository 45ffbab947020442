//! Gathers removed mappings and tables until their flush: a batch of the engine with its leftovers (Linux's
//! `mmu_gather`).
//!
//! A [`MmuGather`] holds mappings removed from a table, and tables removed from their parent. After the flush, and not
//! before, a mapping leaves the reverse map and drops its reference, and a table's frame is freed.

use crate::frame::Owner;
use crate::frames::Frames;
use crate::machine::{Change, Event, Freed, LockUse, Machine, Path, Work};
use crate::processes::{Process, SpaceBatch, SpaceRef};
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{
    Batch, Break, Frame, FrameArray, FrameList, Page, PageRange, PageSize, Purpose, Scope,
};

/// An object that waits for a flush.
pub(crate) enum WaitingObject<M: Machine> {
    /// An entry that mapped the block.
    Mapping { frame: Frame, process: Arc<Process<M>>, page: Page, hold: BlockReference },
    /// A page-table page.
    Table(Frame),
}

/// The reference that keeps the block of a removed entry.
#[derive(Clone, Copy)]
pub(crate) enum BlockReference {
    /// The entry's own reference.
    Reference,
    /// No reference, because the entry was a marker. The block may be freed before the flush, and mapped again at the
    /// same place. It lists this entry only in this life.
    Life(u64),
}

/// Changed entries that are flushed together. Dropping it flushes and releases.
pub(crate) struct MmuGather<'v, 'm, M: Machine> {
    frames: &'v Frames<'m, M>,
    purpose: Purpose,
    room: usize,
    batch: Option<GatherBatch<'v, M>>,
    /// The changes that the machine flushes itself.
    own: Option<OwnBatch<M>>,
    /// Why the changes free memory, if they do nothing else.
    freed: Option<Freed>,
}

/// A batch of a machine that [flushes itself](Machine::flushes_itself).
struct OwnBatch<M: Machine> {
    changes: Vec<Change>,
    /// On the heap: kernels, which never use this, have small stacks.
    objects: Vec<WaitingObject<M>>,
}

type GatherBatch<'v, M> = SpaceBatch<'v, M, PendingObjects<WaitingObject<M>>>;

/// Objects that wait for their flush: in place at first, then on the heap, up to `room` in all.
pub(crate) struct PendingObjects<T> {
    first: FrameArray<T>,
    more: Vec<T>,
    count: usize,
    room: usize,
}

impl<T> PendingObjects<T> {
    fn new(room: usize) -> Self {
        PendingObjects { first: FrameArray::new(), more: Vec::new(), count: 0, room: room.max(1) }
    }
}

impl<T> FrameList for PendingObjects<T> {
    type Frame = T;

    #[inline]
    fn is_full(&self) -> bool {
        self.count >= self.room
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    fn push(&mut self, held: T) {
        self.count += 1;
        if self.first.is_full() {
            self.more.push(held);
        } else {
            self.first.push(held);
        }
    }

    #[inline]
    fn take(&mut self) -> Option<T> {
        let held = self.first.take().or_else(|| self.more.pop())?;
        self.count -= 1;
        Some(held)
    }
}

impl<'v, 'm, M: Machine> MmuGather<'v, 'm, M> {
    /// Creates a gather that flushes at the latest when `room` frames wait in it.
    pub(crate) fn new(frames: &'v Frames<'m, M>, purpose: Purpose, room: usize) -> Self {
        MmuGather { frames, purpose, room, batch: None, own: None, freed: None }
    }

    /// Declares that the changes only free memory. So a machine that flushes itself may return before other CPUs have
    /// flushed, if the frames wait for them.
    pub(crate) fn that_frees(mut self, freed: Freed) -> Self {
        self.freed = Some(freed);
        self
    }

    /// Adds a changed range, and an object that waits for its flush.
    fn add(
        &mut self,
        process: &Arc<Process<M>>,
        range: PageRange,
        scope: Scope,
        held: Option<WaitingObject<M>>,
    ) {
        if self.frames.machine().flushes_itself() {
            return self.add_own(process, range, scope, held);
        }
        let batch = self.batch();
        batch.changed(SpaceRef(process.clone()), range, scope);
        if let Some(held) = held {
            batch.hold(held);
        }
    }

    fn add_own(
        &mut self,
        process: &Process<M>,
        range: PageRange,
        scope: Scope,
        held: Option<WaitingObject<M>>,
    ) {
        let room = self.room.max(1);
        if self.own.as_ref().is_some_and(|own| own.objects.len() >= room) {
            self.flush();
        }
        let own =
            self.own.get_or_insert_with(|| OwnBatch { changes: Vec::new(), objects: Vec::new() });
        let root = process.root();
        let removed = match &held {
            Some(WaitingObject::Mapping { frame, .. }) => Some(*frame),
            _ => None,
        };
        own.changes.push(Change { root, range, scope, removed });
        own.objects.extend(held);
    }

    /// Lets the machine flush. Frames that must wait longer are released by a later flush of this CPU.
    fn flush_own(&self, own: OwnBatch<M>) {
        let (frames, machine) = (self.frames, self.frames.machine());
        let until = machine.flush(&own.changes, self.freed);
        // The latest first, as a batch returns its frames.
        let objects = own.objects.into_iter().rev();
        if until == 0 {
            release_all(frames, objects);
        } else {
            frames.postpone(objects.map(|held| (until, held)));
            release_all(frames, frames.take_due(machine.now()));
        }
    }

    /// Returns the batch, with room for one more.
    fn batch(&mut self) -> &mut GatherBatch<'v, M> {
        if self.batch.as_ref().is_some_and(Batch::is_full) {
            self.flush();
        }
        let (frames, purpose, room) = (self.frames, self.purpose, self.room);
        self.batch
            .get_or_insert_with(|| frames.engine().batch_into(purpose, PendingObjects::new(room)))
    }

    /// Reports that an entry lost rights, under its table's lock.
    pub(crate) fn changed(&mut self, process: &Arc<Process<M>>, range: PageRange) {
        self.freed = None;
        self.add(process, range, Scope::Leaf, None);
    }

    /// Reports that an entry was cleared, under its table's lock.
    pub(crate) fn unmapped(
        &mut self,
        process: &Arc<Process<M>>,
        range: PageRange,
        held: WaitingObject<M>,
    ) {
        let scope = self.scope_of_cleared(range);
        self.add(process, range, scope, Some(held));
    }

    /// Reports that a large page was cleared to be split, under its table's lock.
    pub(crate) fn cleared(&mut self, process: &Arc<Process<M>>, range: PageRange) {
        let scope = self.scope_of_cleared(range);
        self.add(process, range, scope, None);
    }

    /// Returns the scope of `flush_needed` for a page that another page size may replace.
    fn scope_of_cleared(&self, range: PageRange) -> Scope {
        let machine = self.frames.machine();
        let may_resize = range.stride != PageSize::Base;
        if may_resize && machine.tlb_rules().break_before_make != Break::Never {
            // We wait for the flush itself, not only for the receipt. [mutant VmLargePageFlushedAsLeaf]
            Scope::Tables
        } else {
            Scope::Leaf
        }
    }

    /// Reports that a table was unlinked from its parent, under the locks of both.
    pub(crate) fn table_unlinked(
        &mut self,
        process: &Arc<Process<M>>,
        range: PageRange,
        table: Frame,
    ) {
        let held = WaitingObject::Table(table);
        // Walker caches keep upper levels, and a flush of leaf entries doesn't drop them. [mutant VmTableFlushLeafOnly]
        self.add(process, range, Scope::Tables, Some(held));
    }

    /// Reports that the lock under which an entry changed was dropped. A simple kernel's reclaim flushes now (without
    /// S0).
    pub(crate) fn unlocked(&mut self) {
        if let Some(batch) = &mut self.batch {
            batch.unlocked();
        }
    }

    /// Flushes, and releases the waiting objects. The gather can be used again.
    pub(crate) fn flush(&mut self) {
        if let Some(own) = self.own.take() {
            self.flush_own(own);
        }
        if let Some(batch) = &mut self.batch {
            release_all(self.frames, batch.finish());
        }
    }
}

impl<M: Machine> Drop for MmuGather<'_, '_, M> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Releases objects after their flush.
fn release_all<M: Machine>(
    frames: &Frames<'_, M>,
    objects: impl IntoIterator<Item = WaitingObject<M>>,
) {
    let mut anonymous = None;
    for held in objects {
        // We release them now and not earlier: until the flush a CPU may use a translation to the frame, and a walker
        // may read the table. [mutants VmFreesBeforeFlush, VmFreesTableBeforeFlush]
        anonymous = release(frames, &held).or(anonymous);
    }
    if let Some(frame) = anonymous {
        let machine = frames.machine();
        machine.charge(Work::Locked(LockUse::ListFree(frame)));
    }
}

/// Releases the reference of a removed entry, after its flush. Returns the frame if it is an anonymous page's.
#[inline]
fn release<M: Machine>(frames: &Frames<'_, M>, held: &WaitingObject<M>) -> Option<Frame> {
    match held {
        WaitingObject::Mapping { frame, process, page, hold } => {
            // A walk of the reverse map that finds no entry assumes that the frame is unmapped. So the entry stays
            // listed until its flush. [mutant VmUnlinksBeforeFlush]
            let mut anonymous = false;
            anonymous |= unlist(frames, *frame, process, *page, *hold);
            if matches!(hold, BlockReference::Reference) {
                frames.put(*frame);
            }
            anonymous.then_some(*frame)
        }
        WaitingObject::Table(frame) => {
            frames.machine().note(Event::TableFreed { frame: *frame });
            frames.machine().charge(Work::Path(Path::Table));
            frames.put(*frame);
            None
        }
    }
}

/// Removes an entry from its frame's reverse map. Returns whether the frame is an anonymous page's.
#[inline]
fn unlist<M: Machine>(
    frames: &Frames<'_, M>,
    frame: Frame,
    process: &Arc<Process<M>>,
    page: Page,
    hold: BlockReference,
) -> bool {
    let mut state = frames.state(frame);
    let listed = match hold {
        BlockReference::Reference => true,
        // A frame without a reference may have been freed, and mapped again at the same place, before the flush of its
        // old entry. [mutant VmUnlistsNextLife]
        BlockReference::Life(life) => state.life == life,
    };
    if listed {
        state.rmap.remove(process, page);
    }
    state.owner == Owner::Anonymous
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_that_find_no_place_wait_on_the_heap() {
        let mut objects = PendingObjects::new(100);
        (0..100).for_each(|object| objects.push(object));
        assert!(objects.is_full());
        let mut taken: Vec<u32> = core::iter::from_fn(|| objects.take()).collect();
        taken.sort_unstable();
        assert_eq!(taken, Vec::from_iter(0..100));
        assert!(objects.is_empty());
    }
}
