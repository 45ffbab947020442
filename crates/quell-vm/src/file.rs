//! Files and the page cache.
//!
//! A file is a length and a list of slots, one per page, each with its own lock, the page lock. A
//! slot names the frame that caches the page, if one does. A slot that was emptied lazily (S3)
//! still names its frame: the page may be rescued from it, and the slot is filled with another
//! frame only after the frame was claimed, which paid the debt (C4).
//!
//! The device behind a file is memory; pages of zeros take no room on it.
//!
//! # Dirty pages
//!
//! A shared page is mapped writable only by a fault that marks the slot dirty first. A page is
//! marked clean only by [`Vm::sync`] and by reclaim, after every mapping listed for it has been
//! write-protected or cleared *and flushed*, also those that somebody else has cleared and not
//! yet flushed. So a clean page has no writable translation anywhere, stale or not; that is what
//! lets reclaim owe the flush of clean pages.

use crate::arena::Arena;
use crate::entry::View;
use crate::frame::Owner;
use crate::frames::Content;
use crate::gather::Gather;
use crate::lock::{Guard, Lock, RawLock};
use crate::machine::{Event, Machine, Work};
use crate::shared::Shared;
use crate::user::{Error, FileId};
use crate::vm::Vm;
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use quell::addr::PAGE_BYTES;
use quell::mutant::Mutant;
use quell::{Frame, Purpose};

/// The longest file: 64 GB.
const MAX_PAGES: u64 = 1 << 24;

/// What a slot knows of its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Cached {
    #[default]
    Absent,
    Present(Frame),
    /// Taken away lazily: the frame holds the page until it is claimed.
    Stale(Frame),
}

/// One page of a file.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) cached: Cached,
    pub(crate) dirty: bool,
    /// The frame that the page was moved from lazily: stale translations may still read it.
    pub(crate) shadow: Option<Frame>,
    /// What the device holds; zeros if nothing.
    device: Option<Box<[u8]>>,
}

/// A file.
pub(crate) struct File<M: Machine> {
    bytes: Shared<M::Word>,
    /// Held by whoever changes the length downwards.
    truncation: RawLock<M::Word>,
    slots: Arena<Lock<M::Word, Slot>, 16>,
    /// The pages that are dirty.
    dirty: Lock<M::Word, BTreeSet<u64>>,
}

impl<M: Machine> File<M> {
    pub(crate) fn new(bytes: u64) -> Self {
        File {
            bytes: Shared::new(bytes),
            truncation: RawLock::new(),
            slots: Arena::new(),
            dirty: Lock::new(BTreeSet::new()),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// How many pages the file has.
    pub(crate) fn pages(&self) -> u64 {
        self.bytes().div_ceil(PAGE_BYTES)
    }

    /// The slot of a page below the largest length.
    pub(crate) fn slot(&self, page: u64) -> Option<&Lock<M::Word, Slot>> {
        let small = (page < MAX_PAGES).then_some(page as usize)?;
        self.slots.get_or_make(small, || Lock::new(Slot::default()))
    }

    /// The slot of a page, if it was ever used.
    fn used_slot(&self, page: u64) -> Option<&Lock<M::Word, Slot>> {
        self.slots.get(page as usize)
    }
}

/// A slot, locked.
pub(crate) type SlotGuard<'v, M> = Guard<'v, <M as quell::Hardware>::Word, Slot>;

impl<'m, M: Machine> Vm<'m, M> {
    pub(crate) fn file(&self, file: FileId) -> Result<&File<M>, Error> {
        let made = self.files_made.load(Ordering::Acquire);
        let found = (file < made)
            .then(|| self.files.get(file as usize))
            .flatten();
        found.and_then(|file| file.get()).ok_or(Error::NoFile)
    }

    pub(crate) fn create(&self, bytes: u64) -> Result<u64, Error> {
        if bytes.div_ceil(PAGE_BYTES) > MAX_PAGES {
            return Err(Error::BadRange);
        }
        let id = self.files_made.fetch_add(1, Ordering::AcqRel);
        let place = self
            .files
            .get_or_make(id as usize, once_cell::race::OnceBox::new);
        place
            .ok_or(Error::NoSpace)?
            .get_or_init(|| Box::new(File::new(bytes)));
        Ok(u64::from(id))
    }

    /// The frame that caches the page, rescued or read from the device if need be. The slot holds
    /// a reference to it. `None` if memory is short.
    pub(crate) fn cached(
        &self,
        file: FileId,
        page: u64,
        slot: &mut SlotGuard<'_, M>,
    ) -> Option<Frame> {
        let machine = self.machine();
        machine.charge(Work::CacheLookup);
        match slot.cached {
            Cached::Present(frame) => return Some(frame),
            Cached::Stale(frame) => {
                if !machine.mutant(Mutant::VmRefillsOwedSlot) && self.rescue(frame, file, page) {
                    slot.cached = Cached::Present(frame);
                    return Some(frame);
                }
                // Claimed by somebody else, who paid the debt.
                slot.cached = Cached::Absent;
            }
            Cached::Absent => {}
        }
        let content = if slot.device.is_some() {
            Content::Any
        } else {
            Content::Zeros(0)
        };
        let frame = self.allocate(0, content)?;
        machine.charge(Work::ReadDevice { bytes: PAGE_BYTES });
        if let Some(data) = &slot.device {
            machine.write_frame(frame, 0, data);
        }
        let mut state = self.frames.info(frame).state(machine);
        state.owner = Owner::File(file, page);
        state.zeros = false;
        slot.cached = Cached::Present(frame);
        Some(frame)
    }

    /// Takes a stale frame back for its page, if nobody has claimed it.
    fn rescue(&self, frame: Frame, file: FileId, page: u64) -> bool {
        let info = self.frames.info(frame);
        let mut state = info.state(self.machine());
        // A claimed frame may be stale again, as another page. A claim changes the owner under this
        // lock, so the two checks together are about one moment.
        let rescued = state.owner == Owner::File(file, page) && info.residue.rescue(&self.engine);
        if rescued {
            state.references = 1;
            self.machine().note(Event::FrameRescued { frame });
        }
        rescued
    }

    /// The bytes of the page are about to differ from those of its shadow: pays the debt.
    fn settle_shadow(&self, slot: &mut SlotGuard<'_, M>) {
        if let Some(shadow) = slot.shadow.take() {
            // One load if somebody has paid. If the frame has become another page's, this pays
            // that page's debt, too early but not in vain.
            let paid = self.engine.is_paid(&self.frames.info(shadow).residue);
            if !paid && !self.machine().mutant(Mutant::VmWritesShadowedPage) {
                self.engine.pay_all();
            }
        }
    }

    /// The page is about to be written.
    pub(crate) fn mark_dirty(&self, file: FileId, page: u64, slot: &mut SlotGuard<'_, M>) {
        self.settle_shadow(slot);
        if !slot.dirty {
            slot.dirty = true;
            if let Ok(file) = self.file(file) {
                file.dirty.lock(self.machine()).insert(page);
            }
        }
    }

    /// Writes the page to the device and marks it clean. No writable translation is left anywhere.
    pub(crate) fn write_back(
        &self,
        file: FileId,
        page: u64,
        slot: &mut SlotGuard<'_, M>,
        frame: Frame,
    ) {
        let machine = self.machine();
        machine.note(Event::Captured { frame, frames: 1 });
        machine.charge(Work::WriteDevice { bytes: PAGE_BYTES });
        let mut data = slot
            .device
            .take()
            .unwrap_or_else(|| vec![0; PAGE_BYTES as usize].into());
        machine.read_frame(frame, 0, &mut data);
        slot.device = data.iter().any(|&byte| byte != 0).then_some(data);
        self.mark_clean(file, page, slot);
    }

    fn mark_clean(&self, file: FileId, page: u64, slot: &mut SlotGuard<'_, M>) {
        slot.dirty = false;
        if let Ok(file) = self.file(file) {
            file.dirty.lock(self.machine()).remove(&page);
        }
    }

    pub(crate) fn write(&self, id: FileId, offset: u64, value: u64) -> Result<u64, Error> {
        let (file, page, at) = self.file_word(id, offset)?;
        let mut slot = file.slot(page).ok_or(Error::BadRange)?.lock(self.machine());
        file.bytes.fetch_max(offset + 8, Ordering::AcqRel);
        let frame = self.cached(id, page, &mut slot).ok_or(Error::OutOfMemory)?;
        self.mark_dirty(id, page, &mut slot);
        self.machine().write_frame(frame, at, &value.to_le_bytes());
        Ok(0)
    }

    pub(crate) fn read(&self, id: FileId, offset: u64) -> Result<u64, Error> {
        let (file, page, at) = self.file_word(id, offset)?;
        let mut slot = file
            .slot(page)
            .ok_or(Error::BeyondEnd)?
            .lock(self.machine());
        if offset + 8 > file.bytes() {
            return Err(Error::BeyondEnd);
        }
        let frame = self.cached(id, page, &mut slot).ok_or(Error::OutOfMemory)?;
        let mut bytes = [0; 8];
        self.machine().read_frame(frame, at, &mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Where the eight bytes at `offset` are: the file, the page, the offset in it.
    fn file_word(&self, id: FileId, offset: u64) -> Result<(&File<M>, u64, usize), Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Unaligned);
        }
        let file = self.file(id)?;
        if offset >= MAX_PAGES * PAGE_BYTES {
            return Err(Error::BadRange);
        }
        Ok((file, offset / PAGE_BYTES, (offset % PAGE_BYTES) as usize))
    }

    /// `fdatasync`. Returns how many pages were written.
    pub(crate) fn sync(&self, id: FileId) -> Result<u64, Error> {
        let machine = self.machine();
        let file = self.file(id)?;
        let pages: Vec<u64> = file.dirty.lock(machine).iter().copied().collect();
        // A simple kernel cleans one page after the other; with batches, 32 wait for one flush.
        let together = if self.engine.policy().batch {
            crate::reclaim::BATCH
        } else {
            1
        };
        let mut written = 0;
        for chunk in pages.chunks(together) {
            let mut gather = Gather::new(self, Purpose::Reclaim);
            let mut locked: Vec<(u64, SlotGuard<'_, M>, Frame)> = Vec::with_capacity(chunk.len());
            for &page in chunk {
                let Some(slot) = file.used_slot(page) else {
                    continue;
                };
                let slot = slot.lock(machine);
                let Cached::Present(frame) = slot.cached else {
                    continue;
                };
                if slot.dirty {
                    self.write_protect(frame, &mut gather);
                    locked.push((page, slot, frame));
                }
            }
            if !machine.mutant(Mutant::VmCleansBeforeFlush) {
                gather.flush();
            }
            for (page, slot, frame) in &mut locked {
                self.write_back(id, *page, slot, *frame);
                written += 1;
            }
        }
        Ok(written)
    }

    /// Takes the right to write away from every mapping of the frame, whose page is locked.
    fn write_protect<'v>(&'v self, frame: Frame, gather: &mut Gather<'v, 'm, M>) {
        for mapping in &self.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            match guard.view(mapping.page) {
                View::Page(entry) if entry.frame == frame && entry.writable => {
                    guard.update(mapping.page, Some(gather), |entry| {
                        entry.writable = false;
                        entry.dirty = false;
                    });
                }
                // Somebody has taken the right or the mapping away, and may not have flushed yet.
                _ => self.settle(&mapping.process, Mutant::VmCleansUnsettled),
            }
        }
    }

    pub(crate) fn truncate(&self, id: FileId, bytes: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let file = self.file(id)?;
        if bytes.div_ceil(PAGE_BYTES) > MAX_PAGES {
            return Err(Error::BadRange);
        }
        file.truncation.lock(machine);
        let before = file.pages();
        // The length first: a fault checks it under the page lock, so no page beyond it is mapped
        // after its slot was emptied.
        file.bytes.store(bytes, Ordering::Release);
        let keep = bytes.div_ceil(PAGE_BYTES);
        let mut page = keep;
        while page < before {
            let stop = before.min(page + crate::reclaim::BATCH as u64);
            self.empty_slots(id, file, page, stop);
            page = stop;
        }
        let cut = if !bytes.is_multiple_of(PAGE_BYTES) && keep <= before {
            self.clear_tail(id, file, keep - 1, (bytes % PAGE_BYTES) as usize)
        } else {
            Ok(0)
        };
        file.truncation.unlock();
        cut
    }

    /// Drops the pages `from..to`, mapped or not, from cache and device.
    fn empty_slots(&self, id: FileId, file: &File<M>, from: u64, to: u64) {
        let machine = self.machine();
        let mut gather = Gather::new(self, Purpose::Call);
        let mut locked: Vec<(SlotGuard<'_, M>, Option<Frame>)> = Vec::new();
        for page in from..to {
            let Some(slot) = file.used_slot(page) else {
                continue;
            };
            let mut slot = slot.lock(machine);
            self.settle_shadow(&mut slot);
            if let Cached::Stale(frame) = slot.cached {
                // Back first: then its markers are found like any other mapping.
                let rescued = self.rescue(frame, id, page);
                slot.cached = if rescued {
                    Cached::Present(frame)
                } else {
                    Cached::Absent
                };
            }
            let mut gone = None;
            if let Cached::Present(frame) = slot.cached {
                self.unmap_everywhere(frame, &mut gather);
                gone = Some(frame);
            }
            if slot.dirty {
                self.mark_clean(id, page, &mut slot);
            }
            slot.device = None;
            slot.cached = Cached::Absent;
            locked.push((slot, gone));
        }
        gather.flush();
        for frame in locked.iter().filter_map(|(_, gone)| *gone) {
            self.put(frame);
        }
    }

    /// Takes the frame, whose page is locked, out of every table that maps it.
    pub(crate) fn unmap_everywhere<'v>(&'v self, frame: Frame, gather: &mut Gather<'v, 'm, M>) {
        for mapping in &self.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if guard.view(mapping.page).frame() == Some(frame) {
                guard.take(mapping.page, View::Empty, gather);
            } else {
                // Somebody else has cleared it, and the flush is still to come.
                self.settle(&mapping.process, Mutant::VmTruncatesUnsettled);
            }
        }
    }

    /// Zeroes a page from `at` on.
    fn clear_tail(&self, id: FileId, file: &File<M>, page: u64, at: usize) -> Result<u64, Error> {
        let Some(slot) = file.used_slot(page) else {
            return Ok(0);
        };
        let mut slot = slot.lock(self.machine());
        if slot.cached == Cached::Absent && slot.device.is_none() {
            return Ok(0);
        }
        let frame = self.cached(id, page, &mut slot).ok_or(Error::OutOfMemory)?;
        self.mark_dirty(id, page, &mut slot);
        self.machine()
            .write_frame(frame, at, &vec![0; PAGE_BYTES as usize - at]);
        Ok(0)
    }

    /// Eight bytes of a file, for the oracle. As [`Vm::peek`].
    ///
    /// # Safety
    /// As for [`Vm::peek`].
    pub(crate) unsafe fn peek_file(&self, id: FileId, page: u64, offset: usize) -> Option<u64> {
        let file = self.file(id).ok()?;
        if page >= file.pages() {
            return None;
        }
        let mut bytes = [0; 8];
        let Some(slot) = file.used_slot(page) else {
            return Some(0);
        };
        // SAFETY: passed on to the caller.
        let slot = unsafe { slot.peek() };
        let frame = match slot.cached {
            Cached::Present(frame) => Some(frame),
            Cached::Stale(frame) => {
                // SAFETY: as above.
                let owner = unsafe { self.frames.info(frame).peek() };
                (owner == Owner::File(id, page)).then_some(frame)
            }
            Cached::Absent => None,
        };
        if let Some(frame) = frame {
            self.machine().read_frame(frame, offset, &mut bytes);
        } else if let Some(data) = &slot.device {
            bytes.copy_from_slice(&data[offset..offset + 8]);
        }
        Some(u64::from_le_bytes(bytes))
    }
}
