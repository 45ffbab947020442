//! Reclaim: taking pages away that were not used lately, 32 at a time (Linux's `shrink_folio_list`).
//!
//! Reclaim comes from the frame, not from the program, so it holds no areas: it locks the pages of
//! its batch (never waiting for one), finds their entries through the reverse map and takes them out
//! under the locks of their tables.
//!
//! The batch is flushed once (S0), before any of its pages is written out (C2) or freed (C1). An
//! entry that is listed for a page but is not there was cleared by another CPU, which may not have
//! flushed yet: its space is flushed first. The flush of a clean page of a file may be deferred instead
//! ([`crate::lazy_unmap`]).

use crate::entry::EntryKind;
use crate::frames::{CLUSTER, Frames};
use crate::lazy_unmap::LazyUnmap;
use crate::machine::{LockUse, Machine, Path, Work};
use crate::mmu_gather::MmuGather;
use crate::page_cache::{Cached, PageCache};
use crate::pages::{LockedPage, PageLock, Pages};
use crate::swap::Swap;
use crate::tables::Tables;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::{Frame, Purpose};

/// The objects that reclaim uses.
pub(crate) struct Reclaim<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    tables: Arc<Tables<'m, M>>,
    cache: Arc<PageCache<'m, M>>,
    swap: Arc<Swap<'m, M>>,
    pages: Arc<Pages<'m, M>>,
    lazy: Arc<LazyUnmap<'m, M>>,
    /// Whether pages of fast nodes are demoted, so that slow nodes are reclaimed first.
    demotion: bool,
}

impl<'m, M: Machine> Reclaim<'m, M> {
    pub(crate) fn new(
        frames: Arc<Frames<'m, M>>,
        tables: Arc<Tables<'m, M>>,
        cache: Arc<PageCache<'m, M>>,
        swap: Arc<Swap<'m, M>>,
        pages: Arc<Pages<'m, M>>,
        lazy: Arc<LazyUnmap<'m, M>>,
        demotion: bool,
    ) -> Self {
        Reclaim {
            frames,
            tables,
            cache,
            swap,
            pages,
            lazy,
            demotion,
        }
    }

    fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    /// Reclaims up to `pages` base pages of any nodes, those of `home` first; returns how many. Where pages are
    /// demoted to slow nodes, those are reclaimed before the others.
    pub(crate) fn reclaim(&self, home: usize, pages: u64) -> u64 {
        let nodes = self.frames.map().nodes();
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&node| (self.demotion && !nodes[node].slow, node != home));
        let mut taken = 0;
        for second in [false, true] {
            for &node in &order {
                taken += self.reclaim_pass(node, pages - taken, second);
            }
        }
        taken
    }

    /// Reclaims up to `pages` base pages of one node; returns how many.
    pub(crate) fn reclaim_on(&self, node: usize, pages: u64) -> u64 {
        let first = self.reclaim_pass(node, pages, false);
        first + self.reclaim_pass(node, pages - first, true)
    }

    /// One pass over a node's pages, with those that were used lately (`second`) or without.
    fn reclaim_pass(&self, node: usize, pages: u64, second: bool) -> u64 {
        let mut taken = 0;
        while taken < pages {
            let wanted = (pages - taken).min(self.together() as u64) as usize;
            let batch = self.pages.choose(node, wanted, second);
            if batch.is_empty() {
                break;
            }
            let evicted = self.evict(batch);
            taken += evicted;
            if evicted == 0 {
                break;
            }
        }
        taken
    }

    /// Reclaims the base pages in these frames, used lately or not; returns how many.
    pub(crate) fn page_out(&self, frames: &[Frame]) -> u64 {
        let mut taken = 0;
        for chunk in frames.chunks(self.together()) {
            let locked = chunk.iter().filter_map(|&frame| self.pages.try_lock(frame));
            let mut batch = Vec::with_capacity(CLUSTER);
            for page in locked {
                self.machine().charge(Work::List);
                if page.order == 0 && !self.pages.is_pinned(&page) {
                    batch.push(page);
                } else {
                    self.pages.unlock(page);
                }
            }
            taken += self.evict(batch);
        }
        taken
    }

    /// How many pages are evicted together: without batches each is unmapped, flushed and written
    /// before the next is looked at.
    fn together(&self) -> usize {
        if self.frames.engine().policy().batch {
            CLUSTER
        } else {
            1
        }
    }

    /// Takes locked base pages out of all tables and out of memory.
    fn evict(&self, pages: Vec<LockedPage<'_, M>>) -> u64 {
        let mut gather = self.tables.gather(Purpose::Reclaim);
        let mut lazily = self.lazy.begin();
        let mut gone: Vec<(LockedPage<'_, M>, Option<u32>)> = Vec::new();
        for page in pages {
            let slot = match &page.lock {
                PageLock::Anonymous(_) => match self.swap.reserve(page.frame) {
                    Some(slot) => Some(slot),
                    None => {
                        self.pages.unlock(page);
                        continue;
                    }
                },
                PageLock::File(..) if self.lazy.may_defer(&page) => {
                    lazily.take(page);
                    continue;
                }
                PageLock::File(..) => None,
            };
            self.unmap(page.frame, slot, &mut gather);
            gone.push((page, slot));
        }
        let mut taken = (gone.len() + lazily.len()) as u64;
        lazily.finish();
        // Capture a page's content only after entries that could write it have left every TLB. [mutant
        // VmWritesOutBeforeFlush]
        gather.flush();
        for (page, slot) in gone {
            taken -= u64::from(!self.drop_page(page, slot));
        }
        taken
    }

    /// Takes a page out of every table, leaving its swap slot there.
    fn unmap(&self, frame: Frame, slot: Option<u32>, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.tables.reach(&mapping.process, mapping.page) else {
                continue;
            };
            let view = guard.view(mapping.page);
            if view.frame() != Some(frame) {
                // Another CPU has cleared it and may not have flushed yet. [mutant VmReclaimsUnflushed]
                self.tables.flush_pending(&mapping.process);
                continue;
            }
            let rest = match (slot, view) {
                (Some(slot), EntryKind::Page(_)) => {
                    self.swap.hold(slot);
                    EntryKind::Swapped(slot)
                }
                _ => EntryKind::Empty,
            };
            guard.take(mapping.page, rest, gather);
            drop(guard);
            gather.unlocked();
        }
    }

    /// The page is in no table any more, flushed: writes it out and frees it. `false` if a fault
    /// took it back meanwhile.
    fn drop_page(&self, page: LockedPage<'_, M>, slot: Option<u32>) -> bool {
        let LockedPage { frame, lock, .. } = page;
        self.machine().charge(Work::Path(Path::Evict));
        match lock {
            PageLock::Anonymous(lock) => {
                if let Some(slot) = slot {
                    self.swap.write(slot, frame);
                }
                let back = self.frames.state(frame).mapped() > 0;
                drop(lock);
                self.frames.put(frame);
                !back
            }
            PageLock::File(file, index, mut slot) => {
                if slot.is_dirty() {
                    self.cache.write_back(file, index, &mut slot, frame);
                }
                slot.set_cached(Cached::Absent);
                let removed = Work::Locked(LockUse::File(file));
                self.machine().charge(removed);
                self.frames.put(frame);
                true
            }
        }
    }
}
