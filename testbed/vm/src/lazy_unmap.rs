//! Unmaps a clean page of a file and defers the flush (S3).
//!
//! No CPU has a writable translation of a clean file page ([`crate::page_cache`]), so its flush may be deferred. The
//! page's entries become markers that name the frame, its slot keeps the frame, and the frame joins the list of stale
//! frames. A later reader reinstates it, without a flush or a read from the device.

use crate::entry::EntryKind;
use crate::frame::Mappings;
use crate::machine::{Event, Machine, Work};
use crate::page_cache::SlotState;
use crate::pages::{LockedPage, PageLock};
use crate::processes::{SpaceBatch, SpaceRef};
use crate::vm::Vm;
use alloc::vec::Vec;
use quell::{Frame, Outcome, PageRange, Purpose, Scope};

/// A lazily unmapped page, with the entries that were present and, if the page was moved, its new frame.
struct UnmappedPage<'v, M: Machine> {
    page: LockedPage<'v, M>,
    marked: Mappings<M>,
    to: Option<Frame>,
}

/// Pages that are being unmapped lazily; one batch defers their flushes.
pub(crate) struct LazyUnmapBatch<'v, 'm, M: Machine> {
    vm: &'v Vm<'m, M>,
    batch: Option<SpaceBatch<'v, M>>,
    departed: Vec<UnmappedPage<'v, M>>,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Starts a batch of lazily unmapped pages.
    pub(crate) fn lazy_batch(&self) -> LazyUnmapBatch<'_, 'm, M> {
        LazyUnmapBatch { vm: self, batch: None, departed: Vec::new() }
    }

    /// Returns whether the flush of the locked page may be deferred. The page must be a clean page of a file, with
    /// every listed mapping present. (A CPU that clears a mapping flushes it, and holds a reference until then.)
    pub(crate) fn may_defer(&self, page: &LockedPage<'_, M>) -> bool {
        let PageLock::File(_, _, slot) = &page.lock else {
            return false;
        };
        let lazy = self.frames.engine().policy().lazy_unmap;
        // We never defer for dirty pages, whose stale translations may be writable. [mutant VmDefersDirtyPages]
        if !lazy || slot.dirty {
            return false;
        }
        self.frames.mappings(page.frame).iter().all(|mapping| {
            let guard = self.reach(&mapping.process, mapping.page);
            guard.is_some_and(|guard| guard.view(mapping.page).frame() == Some(page.frame))
        })
    }

    /// Replaces every entry of the frame by a marker. Returns the entries that were present.
    fn mark_entries(&self, frame: Frame, batch: &mut SpaceBatch<'_, M>) -> Mappings<M> {
        self.frames.info(frame).deferred_flush.begin();
        let mut marked = Mappings::new();
        for mapping in self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            let mut changed = |range: PageRange| {
                batch.changed(SpaceRef(mapping.process.clone()), range, Scope::Leaf);
            };
            match guard.view(mapping.page) {
                EntryKind::Page(entry) if entry.frame == frame => {
                    guard.suspend(mapping.page, EntryKind::Marker(frame), changed);
                    drop(guard);
                    marked.push(mapping);
                }
                // A marker from an earlier unmap: the deferred flush must cover this mapping too.
                EntryKind::Marker(marker) if marker == frame => changed(guard.range(mapping.page)),
                // Another CPU cleared the entry, and may not have flushed yet. [mutant VmReclaimsUnflushed]
                _ => self.flush_pending(&mapping.process),
            }
        }
        marked
    }
}

impl<'v, 'm, M: Machine> LazyUnmapBatch<'v, 'm, M> {
    /// Unmaps a page whose flush may be deferred ([`Vm::may_defer`]). Moves it to the frame `to`, if there is one.
    pub(crate) fn take(&mut self, page: LockedPage<'v, M>, to: Option<Frame>) {
        let vm = self.vm;
        let batch = self.batch.get_or_insert_with(|| vm.frames.engine().batch(Purpose::Lazy));
        let marked = vm.mark_entries(page.frame, batch);
        // No CPU can write the page, so it may be copied before the flush.
        if let Some(to) = to {
            vm.copy_page(&page, to);
        }
        self.departed.push(UnmappedPage { page, marked, to });
    }

    /// Returns the number of unmapped pages.
    pub(crate) fn len(&self) -> usize {
        self.departed.len()
    }

    /// Defers the flush of all pages, or flushes if deferral isn't allowed, and releases the frames.
    pub(crate) fn finish(&mut self) {
        let vm = self.vm;
        let Some(batch) = &mut self.batch else {
            return;
        };
        let machine = vm.machine();
        let frames = &*vm.frames;
        let outcome = batch.finish_deferred();
        let mut stale = Vec::with_capacity(self.departed.len());
        for UnmappedPage { page, marked, to } in self.departed.drain(..) {
            let LockedPage { frame, lock, .. } = page;
            let PageLock::File(_, _, mut slot) = lock else {
                continue;
            };
            let info = frames.info(frame);
            let mut state = info.state(machine);
            // A mapping that another CPU cleared in the meantime keeps its reference until its flush.
            let alone = state.references as usize == marked.len() + 1;
            match &outcome {
                Outcome::Deferred(deferred) if alone => {
                    state.references = 0;
                    // From now on an allocation that finds this frame may reuse it, because the frame may still be
                    // listed from before it was reinstated.
                    machine.note(Event::FrameFreed { frame, frames: 1 });
                    info.deferred_flush.defer(deferred.stamp());
                    drop(state);
                    match to {
                        Some(to) => slot.set_moved(to, deferred.stamp()),
                        None => slot.cached = SlotState::Stale(frame),
                    }
                    stale.push(frame);
                }
                _ => {
                    drop(state);
                    if matches!(outcome, Outcome::Deferred(_)) {
                        // Markers from an earlier unmap become void with the frame, so their flush is due as well.
                        for mapping in &frames.mappings(frame) {
                            vm.frames.engine().flush_pending(&mapping.process.space);
                        }
                    }
                    info.deferred_flush.clear();
                    slot.cached = to.map_or(SlotState::Absent, SlotState::Present);
                    for mapping in &marked {
                        info.state(machine).rmap.remove(&mapping.process, mapping.page);
                        frames.put(frame);
                    }
                    frames.put(frame);
                }
            }
        }
        frames.list_stale(&stale);
    }
}
