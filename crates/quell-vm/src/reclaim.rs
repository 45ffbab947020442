//! Reclaim: choosing pages that were not used lately and taking them away, 32 at a time.
//!
//! Pages are chosen by a clock: a hand per node passes over the frames; a page that was accessed
//! since the last pass is spared once. Reclaim comes from the frame, not from the program, so it
//! holds no areas: it locks the pages of its batch (never waiting for one), finds their entries
//! through the reverse map and takes them out under the locks of their tables.
//!
//! The batch is flushed once (S0), before any of its pages is written out (C2) or freed (C1). An
//! entry that is listed for a page but is not there was cleared by somebody else, who has not
//! flushed yet: its space is settled first.
//!
//! # Owed flushes
//!
//! A clean page of a file has no writable translation anywhere ([`crate::file`]), so its flush may be
//! owed (S3). Its entries become markers, its slot stays, and the frame goes to the list of stale
//! frames. A reader that comes back rescues it: no flush, no reading from the device.

use crate::entry::View;
use crate::file::{Cached, SlotGuard};
use crate::frame::{FrameInfo, Mappings, Owner};
use crate::gather::Gather;
use crate::machine::{Machine, Work};
use crate::process::{Process, SpaceRef};
use crate::table::Migrating;
use crate::user::{Error, FileId};
use crate::vm::Vm;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::mutant::Mutant;
use quell::{Batch, Frame, Outcome, PageRange, Purpose, Scope};

/// How many pages reclaim, migration and writeback work on at a time: Linux's `SWAP_CLUSTER_MAX`.
pub(crate) const BATCH: usize = 32;

/// A page that is locked: its frame keeps its owner, and nobody else takes it away.
pub(crate) struct LockedPage<'v, M: Machine> {
    pub(crate) frame: Frame,
    pub(crate) order: u8,
    pub(crate) kind: PageKind<'v, M>,
}

/// By which lock.
pub(crate) enum PageKind<'v, M: Machine> {
    /// The frame's own. A [`LockedPage`] holds a reference as well.
    Anonymous(AnonymousLock<'v, M>),
    /// The page-cache slot's.
    File(FileId, u64, SlotGuard<'v, M>),
}

/// The page lock of an anonymous frame.
pub(crate) struct AnonymousLock<'v, M: Machine>(&'v FrameInfo<M>);

impl<M: Machine> Drop for AnonymousLock<'_, M> {
    fn drop(&mut self) {
        self.0.page.unlock();
    }
}

/// A page that was taken away lazily: the entries that were present, and where it went, if it is
/// not out of memory.
pub(crate) struct Departed<'v, M: Machine> {
    pub(crate) page: LockedPage<'v, M>,
    pub(crate) marked: Mappings<M>,
    pub(crate) to: Option<Frame>,
}

/// The batch in which flushes are owed.
pub(crate) type LazyBatch<'v, 'm, M> = Batch<'v, 'm, M, SpaceRef<M>, Frame>;

impl<'m, M: Machine> Vm<'m, M> {
    /// Locks the page in `frame` if it is one and nobody holds it.
    pub(crate) fn try_lock_page(&self, frame: Frame) -> Option<LockedPage<'_, M>> {
        let machine = self.machine();
        let info = self.frames.get(frame)?;
        let owner = info.state(machine).owner;
        match owner {
            Owner::Anonymous => {
                let lock = info.page.try_lock().then(|| AnonymousLock(info))?;
                let mut state = info.state(machine);
                if state.owner != Owner::Anonymous || state.references == 0 {
                    return None;
                }
                state.references += 1;
                let order = state.order;
                Some(LockedPage {
                    frame,
                    order,
                    kind: PageKind::Anonymous(lock),
                })
            }
            Owner::File(file, page) => {
                let slot = self.file(file).ok()?.slot(page)?.try_lock()?;
                (slot.cached == Cached::Present(frame)).then_some(LockedPage {
                    frame,
                    order: 0,
                    kind: PageKind::File(file, page, slot),
                })
            }
            Owner::Free | Owner::Kernel | Owner::Table => None,
        }
    }

    /// Waits for the page lock of an anonymous block, which only keeps reclaim and migration away:
    /// what the frame is, the holder has to look. Who calls this holds no other page lock.
    pub(crate) fn lock_block(&self, frame: Frame) -> AnonymousLock<'_, M> {
        let info = self.frames.info(frame);
        info.page.lock(self.machine());
        AnonymousLock(info)
    }

    /// Waits for the lock of the page in `frame`, which the caller has seen mapped, and takes no
    /// reference: keeps away whoever walks the reverse map. The caller has to look again what is
    /// mapped then, and holds no other page lock.
    pub(crate) fn lock_mapped(&self, frame: Frame) -> PageKind<'_, M> {
        let owner = self.frames.info(frame).state(self.machine()).owner;
        let slot = match owner {
            Owner::File(file, page) => self.file(file).ok().and_then(|file| file.slot(page)),
            _ => None,
        };
        match (owner, slot) {
            (Owner::File(file, page), Some(slot)) => {
                PageKind::File(file, page, slot.lock(self.machine()))
            }
            _ => PageKind::Anonymous(self.lock_block(frame)),
        }
    }

    /// Gives the lock and its reference up.
    pub(crate) fn unlock_page(&self, page: LockedPage<'_, M>) {
        let LockedPage { frame, kind, .. } = page;
        if let PageKind::Anonymous(lock) = kind {
            drop(lock);
            self.put(frame);
        }
    }

    /// Whether somebody besides entries, cache and this lock refers to the frame.
    pub(crate) fn pinned(&self, page: &LockedPage<'_, M>) -> bool {
        let state = self.frames.info(page.frame).state(self.machine());
        state.references as usize > state.mapped() + 1
    }

    /// Up to [`BATCH`] pages of a node that were not used lately, locked. `second` takes those that
    /// were, too.
    pub(crate) fn choose(
        &self,
        node: usize,
        wanted: usize,
        second: bool,
        eligible: impl Fn(&LockedPage<'_, M>) -> bool,
    ) -> Vec<LockedPage<'_, M>> {
        let machine = self.machine();
        let extent = self.frames.map().nodes()[node].extent;
        let end = extent.first.plus(extent.frames);
        let mut chosen = Vec::new();
        let mut scanned = 0;
        while chosen.len() < wanted && scanned < extent.frames {
            let frame = {
                let mut hand = self.nodes[node].hand.lock(machine);
                let frame = if *hand < end { *hand } else { extent.first };
                let next = self
                    .frames
                    .untouched_until(node, frame)
                    .unwrap_or(frame.plus(1));
                scanned += next.0 - frame.0;
                *hand = next;
                if next.0 - frame.0 > 1 {
                    continue;
                }
                frame
            };
            let Some(page) = self.try_lock_page(frame) else {
                continue;
            };
            machine.charge(Work::List);
            if eligible(&page) && !self.pinned(&page) && (self.idle_page(frame) || second) {
                chosen.push(page);
            } else {
                self.unlock_page(page);
            }
        }
        chosen
    }

    /// Whether no entry of the frame was used since the last look; forgets what was.
    fn idle_page(&self, frame: Frame) -> bool {
        let mut idle = true;
        for mapping in &self.mappings(frame) {
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if let View::Page(entry) = guard.view(mapping.page)
                && entry.frame == frame
                && entry.accessed
            {
                idle = false;
                // No flush: a stale accessed bit costs a page that looks idle for too long.
                guard.update(mapping.page, None, |entry| entry.accessed = false);
            }
        }
        idle
    }

    /// Reclaims up to `pages` base pages; returns how many. Where pages are demoted to slow nodes,
    /// those are reclaimed first.
    pub(crate) fn reclaim(&self, pages: u64) -> u64 {
        let mut taken = 0;
        for second in [false, true] {
            let nodes = self.frames.map().nodes();
            let mut order: Vec<usize> = (0..nodes.len()).collect();
            order.sort_by_key(|&node| self.config.demotion && !nodes[node].slow);
            for node in order {
                while taken < pages {
                    let wanted = (pages - taken).min(self.together() as u64) as usize;
                    let batch = self.choose(node, wanted, second, |page| page.order == 0);
                    if batch.is_empty() {
                        break;
                    }
                    let evicted = self.evict(batch);
                    taken += evicted;
                    if evicted == 0 {
                        break;
                    }
                }
            }
            if taken >= pages {
                break;
            }
        }
        taken
    }

    /// How many pages are evicted together: without batches each is unmapped, flushed and written
    /// before the next is looked at.
    fn together(&self) -> usize {
        if self.engine.policy().batch { BATCH } else { 1 }
    }

    /// `MADV_PAGEOUT`.
    pub(crate) fn page_out(
        &self,
        process: &Arc<Process<M>>,
        address: u64,
        bytes: u64,
    ) -> Result<u64, Error> {
        let (start, end) = crate::call::pages(address, bytes)?;
        let areas = process.areas.read(self.machine());
        if !areas.covers(start, end) {
            return Err(Error::NotMapped);
        }
        self.split_range(process, start, end)?;
        let mut frames = Vec::new();
        self.each_entry(process, start, end, Migrating::Visit, |_, _, view| {
            if let View::Page(entry) = view {
                frames.push(entry.frame);
            }
        });
        let mut taken = 0;
        for chunk in frames.chunks(self.together()) {
            let locked = chunk.iter().filter_map(|&frame| self.try_lock_page(frame));
            let mut batch = Vec::with_capacity(BATCH);
            for page in locked {
                self.machine().charge(Work::List);
                if page.order == 0 && !self.pinned(&page) {
                    batch.push(page);
                } else {
                    self.unlock_page(page);
                }
            }
            taken += self.evict(batch);
        }
        Ok(taken)
    }

    /// Takes locked base pages out of all tables and out of memory.
    fn evict(&self, pages: Vec<LockedPage<'_, M>>) -> u64 {
        let mut gather = Gather::new(self, Purpose::Reclaim);
        let mut lazy: Option<LazyBatch<'_, 'm, M>> = None;
        let mut owed = Vec::new();
        let mut gone: Vec<(LockedPage<'_, M>, Option<u32>)> = Vec::new();
        for page in pages {
            let slot = match &page.kind {
                PageKind::Anonymous(_) => match self.swap_new(page.frame) {
                    Some(slot) => Some(slot),
                    None => {
                        self.unlock_page(page);
                        continue;
                    }
                },
                PageKind::File(_, _, slot) if self.may_owe(page.frame, slot.dirty) => {
                    let lazy = lazy.get_or_insert_with(|| self.engine.batch(Purpose::Lazy));
                    let marked = self.suspend_lazily(page.frame, lazy);
                    owed.push(Departed {
                        page,
                        marked,
                        to: None,
                    });
                    continue;
                }
                PageKind::File(..) => None,
            };
            self.unmap_reclaimed(page.frame, slot, &mut gather);
            gone.push((page, slot));
        }
        let mut taken = (gone.len() + owed.len()) as u64;
        if let Some(lazy) = lazy {
            self.finish_lazily(lazy, owed);
        }
        if !self.machine().mutant(Mutant::VmWritesOutBeforeFlush) {
            gather.flush();
        }
        for (page, slot) in gone {
            taken -= u64::from(!self.drop_page(page, slot));
        }
        taken
    }

    /// Takes a page that is reclaimed out of every table, leaving its swap slot there.
    fn unmap_reclaimed<'v>(
        &'v self,
        frame: Frame,
        slot: Option<u32>,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        for mapping in &self.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            let view = guard.view(mapping.page);
            if view.frame() != Some(frame) {
                // Cleared by somebody else, whose flush is still to come.
                self.settle(&mapping.process, Mutant::VmReclaimsUnsettled);
                continue;
            }
            let rest = match (slot, view) {
                (Some(slot), View::Page(_)) => {
                    self.swap_hold(slot);
                    View::Swapped(slot)
                }
                _ => View::Empty,
            };
            guard.take(mapping.page, rest, gather);
        }
    }

    /// The page is in no table any more, flushed: writes it out and frees it. `false` if somebody
    /// took it back meanwhile.
    fn drop_page(&self, page: LockedPage<'_, M>, slot: Option<u32>) -> bool {
        let LockedPage { frame, kind, .. } = page;
        match kind {
            PageKind::Anonymous(lock) => {
                if let Some(slot) = slot {
                    self.swap_write(slot, frame);
                }
                let back = self.frames.info(frame).state(self.machine()).mapped() > 0;
                drop(lock);
                self.put(frame);
                !back
            }
            PageKind::File(file, index, mut slot) => {
                if slot.dirty {
                    self.write_back(file, index, &mut slot, frame);
                }
                slot.cached = Cached::Absent;
                self.put(frame);
                true
            }
        }
    }

    /// Whether the flush of the frame, whose page is locked, may be owed: it is clean, and every
    /// listed mapping is there (one that somebody else has cleared is flushed by them, and until
    /// then holds a reference).
    pub(crate) fn may_owe(&self, frame: Frame, dirty: bool) -> bool {
        let machine = self.machine();
        if !self.engine.policy().lazy_unmap || (dirty && !machine.mutant(Mutant::VmOwesDirtyPages))
        {
            return false;
        }
        self.mappings(frame).iter().all(|mapping| {
            let guard = self.reach(&mapping.process, mapping.page);
            guard.is_some_and(|guard| guard.view(mapping.page).frame() == Some(frame))
        })
    }

    /// Replaces every entry of the frame by a marker; returns those that were present.
    pub(crate) fn suspend_lazily(
        &self,
        frame: Frame,
        lazy: &mut LazyBatch<'_, 'm, M>,
    ) -> Mappings<M> {
        self.frames.info(frame).residue.begin();
        let mut marked = Mappings::new();
        for mapping in self.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            let mut changed = |range: PageRange| {
                lazy.changed(SpaceRef(mapping.process.clone()), range, Scope::Leaf);
            };
            match guard.view(mapping.page) {
                View::Page(entry) if entry.frame == frame => {
                    guard.suspend(mapping.page, View::Marker(frame), changed);
                    drop(guard);
                    marked.push(mapping);
                }
                // Stale since an earlier time: the debt is about this mapping too.
                View::Marker(marker) if marker == frame => changed(guard.range(mapping.page)),
                _ => self.settle(&mapping.process, Mutant::VmReclaimsUnsettled),
            }
        }
        marked
    }

    /// Owes the flush of the batch, or flushes it where that is not allowed, and gives the frames
    /// up.
    pub(crate) fn finish_lazily(
        &self,
        mut lazy: LazyBatch<'_, 'm, M>,
        pages: Vec<Departed<'_, M>>,
    ) {
        let machine = self.machine();
        let outcome = lazy.finish_owed();
        for Departed { page, marked, to } in pages {
            let LockedPage { frame, kind, .. } = page;
            let PageKind::File(_, _, mut slot) = kind else {
                continue;
            };
            let info = self.frames.info(frame);
            let mut state = info.state(machine);
            // A mapping that was cleared while this went on keeps its reference until its flush.
            let alone = state.references as usize == marked.len() + 1;
            match &outcome {
                Outcome::Owed(owed) if alone => {
                    state.references = 0;
                    info.residue.owe(owed.stamp());
                    drop(state);
                    match to {
                        Some(to) => {
                            slot.cached = Cached::Present(to);
                            // An older shadow's debt has an older stamp, and is paid with this one.
                            slot.shadow = Some(owed.stamp());
                        }
                        None => slot.cached = Cached::Stale(frame),
                    }
                    self.list_stale(frame);
                }
                _ => {
                    drop(state);
                    if matches!(outcome, Outcome::Owed(_)) {
                        // Markers of an earlier time are void with the frame: theirs is due too.
                        for mapping in &self.mappings(frame) {
                            self.engine.settle(&mapping.process.space);
                        }
                    }
                    info.residue.settle_flushed();
                    slot.cached = to.map_or(Cached::Absent, Cached::Present);
                    for mapping in &marked {
                        info.state(machine).unmap(&mapping.process, mapping.page);
                        self.put(frame);
                    }
                    self.put(frame);
                }
            }
        }
    }
}
