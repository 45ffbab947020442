//! Evicts cold pages, 32 at a time (Linux's `shrink_folio_list`).
//!
//! Reclaim starts from frames, not from a program, so it locks no areas. It locks the pages of its batch, without
//! waiting for any of them. It finds their entries through the reverse map, and removes them under the locks of their
//! tables.
//!
//! The batch is flushed once (S0), before any of its pages is written out (C2) or freed (C1). If a listed entry is
//! absent, another CPU cleared it and may not have flushed yet, so reclaim flushes that space first. The flush of a
//! clean page of a file may be deferred instead ([`crate::lazy_unmap`]).

use crate::entry::EntryKind;
use crate::frames::CLUSTER;
use crate::machine::{Freed, LockUse, Machine, Path, Work};
use crate::mmu_gather::MmuGather;
use crate::page_cache::SlotState;
use crate::pages::{LockedPage, PageLock};
use crate::vm::Vm;
use alloc::vec::Vec;
use quell::{Frame, Purpose};

impl<'m, M: Machine> Vm<'m, M> {
    /// Reclaims up to `pages` base pages of any node, beginning with `home`, and returns their number. If pages are
    /// demoted to slow nodes, those are reclaimed before the others.
    pub(crate) fn reclaim(&self, home: usize, pages: u64) -> u64 {
        let nodes = self.frames.map.nodes();
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_by_key(|&node| (self.config.demotion && !nodes[node].slow, node != home));
        let mut taken = 0;
        for second in [false, true] {
            for &node in &order {
                taken += self.reclaim_pass(node, pages - taken, second);
            }
        }
        taken
    }

    /// Reclaims up to `pages` base pages of one node, and returns their number.
    pub(crate) fn reclaim_on(&self, node: usize, pages: u64) -> u64 {
        let first = self.reclaim_pass(node, pages, false);
        first + self.reclaim_pass(node, pages - first, true)
    }

    /// Makes one pass over a node's pages; `second` includes recently used ones.
    fn reclaim_pass(&self, node: usize, pages: u64, second: bool) -> u64 {
        let mut taken = 0;
        while taken < pages {
            let wanted = (pages - taken).min(self.evicted_together() as u64) as usize;
            let batch = self.choose_pages(node, wanted, second);
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

    /// Reclaims the base pages in these frames, recently used or not, and returns their number.
    pub(crate) fn page_out_frames(&self, frames: &[Frame]) -> u64 {
        let mut taken = 0;
        for chunk in frames.chunks(self.evicted_together()) {
            let locked = chunk.iter().filter_map(|&frame| self.try_lock_page(frame));
            let mut batch = Vec::with_capacity(CLUSTER);
            for page in locked {
                self.machine().charge(Work::List);
                if page.order == 0 && !self.is_pinned(&page) {
                    batch.push(page);
                } else {
                    self.unlock_page(page);
                }
            }
            taken += self.evict(batch);
        }
        taken
    }

    /// Returns the number of pages that are evicted together. Without batches we unmap, flush and write one page before
    /// we examine the next.
    fn evicted_together(&self) -> usize {
        if self.frames.engine().policy().batch { CLUSTER } else { 1 }
    }

    /// Removes locked base pages from all tables and from memory.
    fn evict(&self, pages: Vec<LockedPage<'_, M>>) -> u64 {
        let mut gather = self.gather(Purpose::Reclaim);
        let clean = |page: &LockedPage<'_, M>| matches!(&page.lock, PageLock::File(.., slot) if !slot.dirty);
        if pages.iter().all(clean) {
            gather = gather.that_frees(Freed::Evicted);
        }
        let mut lazily = self.lazy_batch();
        let mut gone: Vec<(LockedPage<'_, M>, Option<u32>)> = Vec::new();
        for page in pages {
            let slot = match &page.lock {
                PageLock::Anonymous(_) => match self.swap.reserve(page.frame) {
                    Some(slot) => Some(slot),
                    None => {
                        self.unlock_page(page);
                        continue;
                    }
                },
                PageLock::File(..) if self.may_defer(&page) => {
                    lazily.take(page, None);
                    continue;
                }
                PageLock::File(..) => None,
            };
            self.unmap_evicted(page.frame, slot, &mut gather);
            gone.push((page, slot));
        }
        let mut taken = (gone.len() + lazily.len()) as u64;
        lazily.finish();
        // We capture a page's content only after entries that could write it have left every TLB. [mutant
        // VmWritesOutBeforeFlush]
        gather.flush();
        for (page, slot) in gone {
            taken -= u64::from(!self.drop_page(page, slot));
        }
        taken
    }

    /// Removes a page from every table, and leaves its swap slot there.
    fn unmap_evicted(&self, frame: Frame, slot: Option<u32>, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            let view = guard.view(mapping.page);
            if view.frame() != Some(frame) {
                // Another CPU cleared the entry, and may not have flushed yet. [mutant VmReclaimsUnflushed]
                self.flush_pending(&mapping.process);
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

    /// Writes out and frees a page that is in no table any more, after the flush. Returns `false` if a fault mapped it
    /// again in the meantime.
    fn drop_page(&self, page: LockedPage<'_, M>, slot: Option<u32>) -> bool {
        let LockedPage { frame, lock, .. } = page;
        self.machine().charge(Work::Path(Path::Evict));
        match lock {
            PageLock::Anonymous(lock) => {
                if let Some(slot) = slot {
                    self.swap.write(slot, frame);
                }
                let back = self.frames.state(frame).rmap.len() > 0;
                drop(lock);
                self.frames.put(frame);
                !back
            }
            PageLock::File(file, index, mut slot) => {
                if slot.dirty {
                    self.cache.write_back(file, index, &mut slot, frame);
                }
                slot.cached = SlotState::Absent;
                let removed = Work::Locked(LockUse::File(file));
                self.machine().charge(removed);
                self.frames.put(frame);
                true
            }
        }
    }
}
