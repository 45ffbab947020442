//! Migration: moving pages to other frames, on another node, under the feet of their users.
//!
//! The page is locked, its entries are replaced by ones that say so (faults wait), the batch is
//! flushed, and only then is the content copied: nobody can write it any more (C2). The entries
//! come back with the rights they had and the new frame. A call that takes a mapping away
//! meanwhile takes the waiting entry, and the migration finds it gone.
//!
//! # Owed flushes
//!
//! The flush of a clean file page may be owed (S3): nobody can write it, so it is copied at once. Its
//! entries become markers that name the old frame, whose bytes are the same; an entry is written
//! again, with the new frame, after the debt was paid. The slot names the new frame and remembers
//! the old one as its *shadow*: before the page is written or cut off, the shadow's debt is paid,
//! because from then on the bytes would differ (C4).
//!
//! Demotion is migration of pages that were not used lately from fast nodes to a slow one.

use crate::entry::View;
use crate::file::Cached;
use crate::frame::{Mapping, Owner};
use crate::frames::Content;
use crate::gather::Gather;
use crate::machine::{Entry, Event, Machine, Work};
use crate::process::Process;
use crate::reclaim::{BATCH, Departed, LockedPage, PageKind};
use crate::table::Migrating;
use crate::user::Error;
use crate::vm::Vm;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::mutant::Mutant;
use quell::{Frame, Purpose};
use smallvec::SmallVec;

/// A page on its way: where to, and the entries that wait for it.
struct Journey<'v, M: Machine> {
    page: LockedPage<'v, M>,
    to: Frame,
    waiting: Waiting<M>,
}

/// Entries that wait for a page.
type Waiting<M> = SmallVec<[(Mapping<M>, Entry); 1]>;

impl<'m, M: Machine> Vm<'m, M> {
    pub(crate) fn migrate(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
        node: usize,
    ) -> Result<u64, Error> {
        let (start, end) = crate::call::pages(address, bytes)?;
        if node >= self.nodes.len() {
            return Err(Error::NoNode);
        }
        let areas = process.areas.read(self.machine());
        if !areas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        let mut frames = Vec::new();
        self.each_entry(process, start, end, Migrating::Visit, |_, _, view| {
            if let View::Page(entry) = view
                && self.frames.map().node_of(entry.frame) != Some(node)
            {
                frames.push(entry.frame);
            }
        });
        let mut moved = 0;
        for chunk in frames.chunks(self.config.migrate_together.max(1)) {
            let batch = chunk
                .iter()
                .filter_map(|&frame| self.try_lock_page(frame))
                .collect();
            moved += self.move_pages(batch, node);
        }
        Ok(moved)
    }

    /// Moves up to `pages` base pages from fast nodes to slow ones; returns how many.
    pub(crate) fn demote(&self, pages: u64) -> u64 {
        let nodes = self.frames.map().nodes();
        let mut moved = 0;
        for second in [false, true] {
            for (slow, _) in nodes.iter().enumerate().filter(|(_, node)| node.slow) {
                for (fast, _) in nodes.iter().enumerate().filter(|(_, node)| !node.slow) {
                    while moved < pages {
                        let wanted = (pages - moved).min(BATCH as u64) as usize;
                        let batch = self.choose(fast, wanted, second, |page| page.order == 0);
                        let went = self.move_pages(batch, slow);
                        moved += went;
                        if went == 0 {
                            break;
                        }
                    }
                }
            }
            if moved >= pages {
                break;
            }
        }
        moved
    }

    /// Moves locked pages to a node; returns how many base pages went.
    fn move_pages(&self, pages: Vec<LockedPage<'_, M>>, node: usize) -> u64 {
        let mut gather = Gather::new(self, Purpose::Migration);
        let mut lazy = None;
        let mut owed = Vec::new();
        let mut journeys = Vec::with_capacity(pages.len());
        for page in pages {
            let Some(to) = self.allocate_from(node, page.order, Content::Any) else {
                self.unlock_page(page);
                continue;
            };
            match &page.kind {
                PageKind::File(_, _, slot) if self.may_owe(page.frame, slot.dirty) => {
                    let lazy = lazy.get_or_insert_with(|| self.engine.batch(Purpose::Lazy));
                    let marked = self.suspend_lazily(page.frame, lazy);
                    self.copy_page(&page, to);
                    owed.push(Departed {
                        page,
                        marked,
                        to: Some(to),
                    });
                }
                _ => {
                    let waiting = self.suspend_migrating(page.frame, &mut gather);
                    journeys.push(Journey { page, to, waiting });
                }
            }
        }
        let mut moved = owed.len() as u64;
        if let Some(lazy) = lazy {
            self.finish_lazily(lazy, owed);
        }
        if !self.machine().mutant(Mutant::VmMigratesBeforeFlush) {
            gather.flush();
        }
        for journey in journeys {
            moved += self.arrive(journey);
        }
        moved
    }

    /// Copies a page that nobody can write, and makes the copy what the page is.
    fn copy_page(&self, page: &LockedPage<'_, M>, to: Frame) {
        let machine = self.machine();
        let (from, frames) = (page.frame, 1 << page.order);
        machine.note(Event::Captured {
            frame: from,
            frames,
        });
        machine.copy_frames(from, to, frames);
        let mut state = self.frames.info(to).state(machine);
        state.zeros = false;
        state.owner = match page.kind {
            PageKind::Anonymous(_) => Owner::Anonymous,
            PageKind::File(file, index, _) => Owner::File(file, index),
        };
    }

    /// Replaces every entry of the frame by one that waits.
    fn suspend_migrating<'v>(&'v self, frame: Frame, gather: &mut Gather<'v, 'm, M>) -> Waiting<M> {
        let mut waiting = Waiting::new();
        for mapping in self.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            match guard.view(mapping.page) {
                View::Page(entry) if entry.frame == frame => {
                    let old = guard.suspend(mapping.page, View::Moving(frame), |range| {
                        gather.changed(&mapping.process, range);
                    });
                    drop(guard);
                    if let View::Page(entry) = old {
                        waiting.push((mapping, entry));
                    }
                }
                // A stale translation of the old frame cannot stand for the new one.
                View::Marker(marker) if marker == frame => {
                    guard.take(mapping.page, View::Empty, gather);
                }
                _ => self.settle(&mapping.process, Mutant::VmMigratesUnsettled),
            }
        }
        waiting
    }

    /// Copies the page and lets its users have it at its new place.
    fn arrive(&self, journey: Journey<'_, M>) -> u64 {
        let machine = self.machine();
        let Journey {
            mut page,
            to,
            waiting,
        } = journey;
        let from = page.frame;
        self.copy_page(&page, to);
        if let PageKind::File(_, _, slot) = &mut page.kind {
            slot.cached = Cached::Present(to);
        }
        for (mapping, entry) in waiting {
            machine.charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if guard.view(mapping.page) == View::Moving(from) {
                self.hold(to);
                guard.map(mapping.page, Entry { frame: to, ..entry });
                drop(guard);
                self.frames
                    .info(from)
                    .state(machine)
                    .unmap(&mapping.process, mapping.page);
                self.put(from);
            }
        }
        match page.kind {
            PageKind::Anonymous(lock) => {
                // The new frame's first reference was this migration's, the old one's the lock's.
                drop(lock);
                self.put(to);
            }
            // The cache's reference went over to the new frame with the slot.
            PageKind::File(_, _, slot) => drop(slot),
        }
        self.put(from);
        1 << page.order
    }
}
