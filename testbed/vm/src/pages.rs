//! Locks pages, and chooses cold ones.
//!
//! The lock of a file's page is that of its page-cache slot; the lock of an anonymous page is its frame's. While a page
//! is locked, its frame keeps its owner, and no other CPU unmaps or moves it.
//!
//! A clock algorithm chooses cold pages: one hand per node passes over the frames, and spares a page once if it was
//! accessed since the last pass.

use crate::entry::EntryKind;
use crate::frame::{FrameLock, Owner};
use crate::frames::CLUSTER;
use crate::machine::{LockUse, Machine, Work};
use crate::page_cache::{SlotGuard, SlotState};
use crate::syscall::FileId;
use crate::vm::Vm;
use alloc::vec::Vec;
use quell::Frame;

/// A locked page.
pub(crate) struct LockedPage<'v, M: Machine> {
    pub(crate) frame: Frame,
    pub(crate) order: u8,
    pub(crate) lock: PageLock<'v, M>,
}

/// The lock of a page.
pub(crate) enum PageLock<'v, M: Machine> {
    /// The lock of the frame. The [`LockedPage`] also holds a reference.
    Anonymous(FrameLock<'v, M>),
    /// The lock of the page-cache slot.
    File(FileId, u64, SlotGuard<'v, M>),
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Locks the page in `frame` if the frame is a page and no CPU holds its lock.
    pub(crate) fn try_lock_page(&self, frame: Frame) -> Option<LockedPage<'_, M>> {
        let machine = self.machine();
        let info = self.frames.get(frame)?;
        let owner = info.state(machine).owner;
        match owner {
            Owner::Anonymous => {
                let lock = info.page.try_lock()?;
                let mut state = info.state(machine);
                if state.owner != Owner::Anonymous || state.references == 0 {
                    return None;
                }
                state.hold();
                let order = state.order;
                Some(LockedPage { frame, order, lock: PageLock::Anonymous(lock) })
            }
            Owner::File(file, page) => {
                let slot = self.cache.file(file).ok()?.slot(page)?.try_lock()?;
                (slot.cached == SlotState::Present(frame)).then_some(LockedPage {
                    frame,
                    order: 0,
                    lock: PageLock::File(file, page, slot),
                })
            }
            Owner::Free | Owner::Kernel | Owner::Table => None,
        }
    }

    /// Locks the page of an anonymous block, which only excludes reclaim and migration. The caller checks the frame's
    /// use afterwards, and holds no other page lock.
    pub(crate) fn lock_block(&self, frame: Frame) -> FrameLock<'_, M> {
        self.frames.info(frame).page.lock(self.machine())
    }

    /// Locks the page in `frame`, which the caller found mapped, without a reference. This excludes walks of the
    /// reverse map. The caller checks the mapping afterwards, and holds no other page lock.
    pub(crate) fn lock_mapped(&self, frame: Frame) -> PageLock<'_, M> {
        let owner = self.frames.state(frame).owner;
        let slot = match owner {
            Owner::File(file, page) => self.cache.file(file).ok().and_then(|file| file.slot(page)),
            _ => None,
        };
        match (owner, slot) {
            (Owner::File(file, page), Some(slot)) => {
                PageLock::File(file, page, slot.lock(self.machine()))
            }
            _ => PageLock::Anonymous(self.lock_block(frame)),
        }
    }

    /// Releases the lock and its reference.
    pub(crate) fn unlock_page(&self, page: LockedPage<'_, M>) {
        let LockedPage { frame, lock, .. } = page;
        if let PageLock::Anonymous(lock) = lock {
            drop(lock);
            self.frames.put(frame);
        }
    }

    /// Returns whether the frame has references besides those of entries, cache and this lock.
    pub(crate) fn is_pinned(&self, page: &LockedPage<'_, M>) -> bool {
        let state = self.frames.state(page.frame);
        state.references as usize > state.rmap.len() + 1
    }

    /// Locks up to `wanted` base pages of a node that weren't used lately. With `second`, also chooses recently used
    /// ones.
    pub(crate) fn choose_pages(
        &self,
        node: usize,
        wanted: usize,
        second: bool,
    ) -> Vec<LockedPage<'_, M>> {
        let machine = self.machine();
        let all = self.frames.map.nodes()[node].extent.frames;
        machine.charge(Work::Locked(LockUse::ListRemove(node)));
        let mut chosen = Vec::new();
        let mut scanned = 0;
        while chosen.len() < wanted && scanned < all {
            // Advance by no more frames than may all be chosen, so that none is passed unexamined.
            let most = (wanted - chosen.len()).min(CLUSTER);
            let (passed, frames) = self.frames.advance_hand(node, most as u64);
            scanned += passed;
            for frame in (0..frames.frames).map(|distance| frames.first.plus(distance)) {
                let Some(page) = self.try_lock_page(frame) else {
                    continue;
                };
                machine.charge(Work::List);
                if page.order == 0 && !self.is_pinned(&page) && (self.is_idle(frame) || second) {
                    chosen.push(page);
                } else {
                    self.unlock_page(page);
                }
            }
        }
        chosen
    }

    /// Returns whether no entry of the frame was used since the last check, and clears the accessed bits.
    fn is_idle(&self, frame: Frame) -> bool {
        let mut idle = true;
        for mapping in &self.frames.mappings(frame) {
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if let EntryKind::Page(entry) = guard.view(mapping.page)
                && entry.frame == frame
                && entry.accessed
            {
                idle = false;
                // We don't flush here: a stale entry sets no accessed bit, so a used page may look idle, which costs
                // only time.
                guard.update(mapping.page, None, |entry| entry.accessed = false);
            }
        }
        idle
    }
}
