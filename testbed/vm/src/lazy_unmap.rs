//! Lazy unmapping (S3): unmaps a clean page of a file and defers the flush.
//!
//! A clean page of a file has no writable translation anywhere ([`crate::page_cache`]), so its flush may be deferred.
//! Its entries become markers that name the frame, its slot stays, and the frame is added to the list of stale frames.
//! A later reader reinstates it, without a flush or a read from the device.

use crate::entry::EntryKind;
use crate::frames::Frames;
use crate::machine::{Event, Machine, Work};
use crate::page_cache::Cached;
use crate::pages::{LockedPage, PageLock};
use crate::process::{SpaceBatch, SpaceRef};
use crate::rmap::Mappings;
use crate::tables::Tables;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{Frame, Outcome, PageRange, Purpose, Scope};

/// The batch in which flushes are deferred.
type LazyBatch<'v, M> = SpaceBatch<'v, M>;

/// A page that was taken away lazily: the entries that were present, and the frame that it moved
/// to, if it is still in memory.
struct Departed<'v, M: Machine> {
    page: LockedPage<'v, M>,
    marked: Mappings<M>,
    to: Option<Frame>,
}

/// Lazy unmapping.
pub(crate) struct LazyUnmap<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    tables: Arc<Tables<'m, M>>,
}

/// Pages that are being taken away lazily, to be deferred together.
pub(crate) struct Lazily<'v, 'm, M: Machine> {
    lazy: &'v LazyUnmap<'m, M>,
    batch: Option<LazyBatch<'v, M>>,
    departed: Vec<Departed<'v, M>>,
}

impl<'m, M: Machine> LazyUnmap<'m, M> {
    pub(crate) fn new(frames: Arc<Frames<'m, M>>, tables: Arc<Tables<'m, M>>) -> Self {
        LazyUnmap { frames, tables }
    }

    fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    /// Begins to take pages away.
    pub(crate) fn begin(&self) -> Lazily<'_, 'm, M> {
        Lazily {
            lazy: self,
            batch: None,
            departed: Vec::new(),
        }
    }

    /// Returns whether the flush of the locked page may be deferred: it is a file's and clean, and every listed
    /// mapping is present. (A CPU that has cleared one flushes it, and holds a reference until then.)
    pub(crate) fn may_defer(&self, page: &LockedPage<'_, M>) -> bool {
        let PageLock::File(_, _, slot) = &page.lock else {
            return false;
        };
        let lazy = self.frames.engine().policy().lazy_unmap;
        // A stale translation of a dirty page may be writable. [mutant VmDefersDirtyPages]
        if !lazy || slot.is_dirty() {
            return false;
        }
        self.frames.mappings(page.frame).iter().all(|mapping| {
            let guard = self.tables.reach(&mapping.process, mapping.page);
            guard.is_some_and(|guard| guard.view(mapping.page).frame() == Some(page.frame))
        })
    }

    /// Replaces every entry of the frame by a marker; returns those that were present.
    fn mark(&self, frame: Frame, batch: &mut LazyBatch<'_, M>) -> Mappings<M> {
        self.frames.info(frame).deferred_flush().begin();
        let mut marked = Mappings::new();
        for mapping in self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.tables.reach(&mapping.process, mapping.page) else {
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
                // Stale since an earlier time: the deferred flush is about this mapping too.
                EntryKind::Marker(marker) if marker == frame => changed(guard.range(mapping.page)),
                // Another CPU has cleared it and may not have flushed yet. [mutant VmReclaimsUnflushed]
                _ => self.tables.flush_pending(&mapping.process),
            }
        }
        marked
    }
}

impl<'v, 'm, M: Machine> Lazily<'v, 'm, M> {
    /// Takes a page away whose flush may be deferred ([`LazyUnmap::may_defer`]).
    pub(crate) fn take(&mut self, page: LockedPage<'v, M>) {
        let marked = self.mark(&page);
        self.departed.push(Departed {
            page,
            marked,
            to: None,
        });
    }

    /// Moves a page to the frame `to`: `copy` copies it, once its entries are markers.
    pub(crate) fn take_to(
        &mut self,
        page: LockedPage<'v, M>,
        to: Frame,
        copy: impl FnOnce(&LockedPage<'v, M>),
    ) {
        let marked = self.mark(&page);
        copy(&page);
        self.departed.push(Departed {
            page,
            marked,
            to: Some(to),
        });
    }

    fn mark(&mut self, page: &LockedPage<'v, M>) -> Mappings<M> {
        let lazy = self.lazy;
        let batch = self
            .batch
            .get_or_insert_with(|| lazy.frames.engine().batch(Purpose::Lazy));
        lazy.mark(page.frame, batch)
    }

    /// How many pages were taken.
    pub(crate) fn len(&self) -> usize {
        self.departed.len()
    }

    /// Owes the flush of all pages, or flushes where that is not allowed, and gives the frames up.
    pub(crate) fn finish(&mut self) {
        let lazy = self.lazy;
        let Some(batch) = &mut self.batch else {
            return;
        };
        let machine = lazy.machine();
        let frames = &*lazy.frames;
        let outcome = batch.finish_deferred();
        let mut stale = Vec::with_capacity(self.departed.len());
        for Departed { page, marked, to } in self.departed.drain(..) {
            let LockedPage { frame, lock, .. } = page;
            let PageLock::File(_, _, mut slot) = lock else {
                continue;
            };
            let info = frames.info(frame);
            let mut state = info.state(machine);
            // A mapping that was cleared while this went on keeps its reference until its flush.
            let alone = state.references() as usize == marked.len() + 1;
            match &outcome {
                Outcome::Deferred(deferred) if alone => {
                    state.set_references(0);
                    // Once it defers its flush, an allocation that finds it may reuse it: it may still be listed from
                    // before it was reinstated.
                    machine.note(Event::FrameFreed { frame, frames: 1 });
                    info.deferred_flush().defer(deferred.stamp());
                    drop(state);
                    match to {
                        Some(to) => slot.set_moved(to, deferred.stamp()),
                        None => slot.set_cached(Cached::Stale(frame)),
                    }
                    stale.push(frame);
                }
                _ => {
                    drop(state);
                    if matches!(outcome, Outcome::Deferred(_)) {
                        // Markers of an earlier time are void with the frame: theirs is due too.
                        for mapping in &frames.mappings(frame) {
                            lazy.frames.engine().flush_pending(mapping.process.space());
                        }
                    }
                    info.deferred_flush().clear();
                    slot.set_cached(to.map_or(Cached::Absent, Cached::Present));
                    for mapping in &marked {
                        info.state(machine).unmap(&mapping.process, mapping.page);
                        frames.put(frame);
                    }
                    frames.put(frame);
                }
            }
        }
        frames.list_stale(&stale);
    }
}
