//! Moves pages to frames on another node while processes use them.
//!
//! A migration locks the page, replaces its entries by entries on which faults wait, and flushes the batch. After that
//! no CPU can write the content, so it's copied only then (C2). Then the entries get their rights back, and the new
//! frame. If a call removes a mapping in the meantime, it removes the waiting entry, and the migration finds it
//! missing.
//!
//! # Deferred flushes
//!
//! The flush of a clean file page may be deferred (S3). No CPU can write the page, so it's copied at once. Its entries
//! become markers that name the old frame, whose bytes are the same. An entry gets the new frame after the deferred
//! flush. The slot names the new frame and remembers the old one as its *shadow*. The shadow's deferred flush is made
//! before the page is written or cut off, because then the bytes will differ (C4).
//!
//! Demotion is migration of cold pages from fast nodes to a slow one.

use crate::entry::EntryKind;
use crate::frame::Mapping;
use crate::frame::Owner;
use crate::frames::{CLUSTER, Content};
use crate::machine::{Entry, Event, Machine, Work};
use crate::mmu_gather::MmuGather;
use crate::page_cache::SlotState;
use crate::pages::{LockedPage, PageLock};
use crate::vm::Vm;
use alloc::vec::Vec;
use quell::{Frame, Purpose};
use smallvec::SmallVec;

/// A page under migration: its new frame, and the entries that wait for it.
struct PageMove<'v, M: Machine> {
    page: LockedPage<'v, M>,
    to: Frame,
    waiting: SuspendedEntries<M>,
}

/// Entries that wait for a page.
type SuspendedEntries<M> = SmallVec<[(Mapping<M>, Entry); 1]>;

impl<'m, M: Machine> Vm<'m, M> {
    /// Moves the pages in these frames to a node. Returns the number of moved base pages.
    pub(crate) fn migrate_frames(&self, frames: &[Frame], node: usize) -> u64 {
        let mut moved = 0;
        for chunk in frames.chunks(self.config.migrate_together.max(1)) {
            let batch = chunk.iter().filter_map(|&frame| self.try_lock_page(frame)).collect();
            moved += self.move_pages(batch, node);
        }
        moved
    }

    /// Moves up to `pages` base pages from fast nodes to slow ones. Returns their number.
    pub(crate) fn demote(&self, pages: u64) -> u64 {
        let nodes = self.frames.map.nodes();
        let mut moved = 0;
        for second in [false, true] {
            for (slow, _) in nodes.iter().enumerate().filter(|(_, node)| node.slow) {
                for (fast, _) in nodes.iter().enumerate().filter(|(_, node)| !node.slow) {
                    while moved < pages {
                        let wanted = (pages - moved).min(CLUSTER as u64) as usize;
                        let batch = self.choose_pages(fast, wanted, second);
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

    /// Moves locked pages to a node. Returns the number of moved base pages.
    fn move_pages(&self, pages: Vec<LockedPage<'_, M>>, node: usize) -> u64 {
        let mut gather = self.gather(Purpose::Migration);
        let mut lazily = self.lazy_batch();
        let mut journeys = Vec::with_capacity(pages.len());
        // If the node has no base frame, it has none for the rest of the batch either. Each attempt would take its
        // lock.
        let mut full = false;
        for page in pages {
            let to = match full {
                false => self.frames.alloc_on(node, page.order, Content::Any),
                true => None,
            };
            let Some(to) = to else {
                full |= page.order == 0;
                self.unlock_page(page);
                continue;
            };
            if self.may_defer(&page) {
                lazily.take(page, Some(to));
            } else {
                let waiting = self.suspend(page.frame, &mut gather);
                if waiting.is_empty() && matches!(page.lock, PageLock::Anonymous(_)) {
                    // A fault is about to map the page at its old place, or it has no owner any more. No entry would
                    // lead to the copy.
                    self.frames.put(to);
                    self.unlock_page(page);
                    continue;
                }
                journeys.push(PageMove { page, to, waiting });
            }
        }
        let mut moved = lazily.len() as u64;
        lazily.finish();
        // We flush before we copy: a write after the copy would be lost. [mutant VmMigratesBeforeFlush]
        gather.flush();
        for journey in journeys {
            moved += self.arrive(journey);
        }
        moved
    }

    /// Copies a page that no CPU can write, and makes the copy the page.
    pub(crate) fn copy_page(&self, page: &LockedPage<'_, M>, to: Frame) {
        let machine = self.machine();
        let (from, frames) = (page.frame, 1 << page.order);
        machine.note(Event::Captured { frame: from, frames });
        machine.copy_frames(from, to, frames);
        let owner = match page.lock {
            PageLock::Anonymous(_) => Owner::Anonymous,
            PageLock::File(file, index, _) => Owner::File(file, index),
        };
        // It was written: a frame that was zero when we took it isn't zero any more. [mutant VmMovesIntoZeros]
        self.frames.state(to).set_written(owner);
    }

    /// Replaces every entry of the frame by one that makes faults wait.
    fn suspend(&self, frame: Frame, gather: &mut MmuGather<'_, 'm, M>) -> SuspendedEntries<M> {
        let mut waiting = SuspendedEntries::new();
        for mapping in self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            match guard.view(mapping.page) {
                EntryKind::Page(entry) if entry.frame == frame => {
                    let old = guard.suspend(mapping.page, EntryKind::Moving(frame), |range| {
                        gather.changed(&mapping.process, range);
                    });
                    drop(guard);
                    gather.unlocked();
                    if let EntryKind::Page(entry) = old {
                        waiting.push((mapping, entry));
                    }
                }
                // A stale translation of the old frame must not stand in for the new one: flush it before the old frame
                // is freed. [mutant VmMigratesPastMarker]
                EntryKind::Marker(marker) if marker == frame => {
                    guard.take(mapping.page, EntryKind::Empty, gather);
                    drop(guard);
                    gather.unlocked();
                }
                // Another CPU cleared the entry or removed the right to write, and may not have flushed yet. [mutant
                // VmMigratesUnflushed]
                _ => self.flush_pending(&mapping.process),
            }
        }
        waiting
    }

    /// Copies the page and maps it at its new place for its users.
    fn arrive(&self, journey: PageMove<'_, M>) -> u64 {
        let machine = self.machine();
        let PageMove { mut page, to, waiting } = journey;
        let from = page.frame;
        self.copy_page(&page, to);
        if let PageLock::File(_, _, slot) = &mut page.lock {
            slot.cached = SlotState::Present(to);
        }
        for (mapping, entry) in waiting {
            machine.charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if guard.view(mapping.page) == EntryKind::Moving(from) {
                self.frames.hold(to);
                guard.map(mapping.page, Entry { frame: to, ..entry });
                drop(guard);
                self.frames.state(from).rmap.remove(&mapping.process, mapping.page);
                self.frames.put(from);
            }
        }
        match page.lock {
            PageLock::Anonymous(lock) => {
                // Migration held the new frame's first reference, the lock the old frame's.
                drop(lock);
                self.frames.put(to);
            }
            // The cache's reference moved to the new frame with the slot.
            PageLock::File(_, _, slot) => drop(slot),
        }
        self.frames.put(from);
        1 << page.order
    }
}
