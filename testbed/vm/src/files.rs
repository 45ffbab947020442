//! What calls do to files: read, write, `fdatasync`, `ftruncate`.
//!
//! The last two walk the reverse map of each page under its page lock. A listed entry that is not
//! there was cleared by another CPU, which may not have flushed yet: its space is flushed before the
//! page is taken for clean, or freed.

use crate::entry::EntryKind;
use crate::frames::{CLUSTER, Frames};
use crate::machine::{Machine, Work};
use crate::memory::Memory;
use crate::mmu_gather::MmuGather;
use crate::page_cache::{Cached, File, MAX_PAGES, PageCache, SlotGuard};
use crate::syscall::{Error, FileId};
use crate::tables::Tables;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Frame, Purpose};

/// The last page of a file: its slot, locked, and its frame unless it reads as zeros.
type Tail<'f, M> = (SlotGuard<'f, M>, Option<Frame>);

/// The calls on files.
pub(crate) struct Files<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    tables: Arc<Tables<'m, M>>,
    cache: Arc<PageCache<'m, M>>,
    memory: Arc<Memory<'m, M>>,
}

impl<'m, M: Machine> Files<'m, M> {
    pub(crate) fn new(
        frames: Arc<Frames<'m, M>>,
        tables: Arc<Tables<'m, M>>,
        cache: Arc<PageCache<'m, M>>,
        memory: Arc<Memory<'m, M>>,
    ) -> Self {
        Files {
            frames,
            tables,
            cache,
            memory,
        }
    }

    fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    /// Writes eight bytes.
    pub(crate) fn write(&self, id: FileId, offset: u64, value: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let (file, page, at) = self.file_word(id, offset)?;
        let place = file.slot(page).ok_or(Error::BadRange)?;
        let mut slot = place.lock(machine);
        // A write within the file comes before any truncation that is to empty this slot.
        let mut _length = None;
        let lengthens = offset + 8 > file.bytes();
        if lengthens {
            // The lock of the length comes before those of slots.
            drop(slot);
            // A truncation that has changed the length takes what is written beyond it until it has emptied the slots
            // there. [mutant VmLengthensUnlocked]
            _length = Some(file.lock_length(machine));
            slot = place.lock(machine);
        }
        let frame = self.cached(id, page, &mut slot)?;
        // From here on nothing fails: a write that finds no memory leaves the length as it was.
        if lengthens {
            file.extend(offset + 8);
        }
        // [mutant VmWritesUnmarked]
        self.cache.mark_dirty(id, page, &mut slot);
        machine.write_frame(frame, at, &value.to_le_bytes());
        Ok(0)
    }

    /// Reads eight bytes.
    pub(crate) fn read(&self, id: FileId, offset: u64) -> Result<u64, Error> {
        let (file, page, at) = self.file_word(id, offset)?;
        let mut slot = file
            .slot(page)
            .ok_or(Error::BeyondEnd)?
            .lock(self.machine());
        if offset + 8 > file.bytes() {
            return Err(Error::BeyondEnd);
        }
        let frame = self.cached(id, page, &mut slot)?;
        let mut bytes = [0; 8];
        self.machine().read_frame(frame, at, &mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// The frame that caches a page.
    fn cached(&self, id: FileId, page: u64, slot: &mut SlotGuard<'_, M>) -> Result<Frame, Error> {
        let frame = self.cache.get(id, page, slot, &*self.memory);
        frame.ok_or(Error::OutOfMemory)
    }

    /// Where the eight bytes at `offset` are: the file, the page, the offset in it.
    fn file_word(&self, id: FileId, offset: u64) -> Result<(&File<M>, u64, usize), Error> {
        if !offset.is_multiple_of(8) {
            return Err(Error::Unaligned);
        }
        let file = self.cache.file(id)?;
        if offset >= MAX_PAGES * PAGE_BYTES {
            return Err(Error::BadRange);
        }
        Ok((file, offset / PAGE_BYTES, (offset % PAGE_BYTES) as usize))
    }

    /// `fdatasync`. Returns how many pages were written.
    pub(crate) fn sync(&self, id: FileId) -> Result<u64, Error> {
        let machine = self.machine();
        let file = self.cache.file(id)?;
        let pages = file.dirty_pages(machine);
        // A simple kernel cleans one page after the other; with batches, 32 wait for one flush.
        let together = if self.frames.engine().policy().batch {
            CLUSTER
        } else {
            1
        };
        let mut written = 0;
        for chunk in pages.chunks(together) {
            let mut gather = self.tables.gather(Purpose::Reclaim);
            let mut locked: Vec<(u64, SlotGuard<'_, M>, Frame)> = Vec::with_capacity(chunk.len());
            for &page in chunk {
                let Some(slot) = file.used_slot(page) else {
                    continue;
                };
                let slot = slot.lock(machine);
                let Cached::Present(frame) = slot.cached() else {
                    continue;
                };
                if slot.is_dirty() {
                    self.write_protect(frame, &mut gather);
                    locked.push((page, slot, frame));
                }
            }
            // Clean only when no CPU can write a page without a fault. [mutant VmCleansBeforeFlush]
            gather.flush();
            for (page, slot, frame) in &mut locked {
                self.cache.write_back(id, *page, slot, *frame);
                written += 1;
            }
        }
        Ok(written)
    }

    /// Takes the right to write away from every mapping of the frame, whose page is locked.
    fn write_protect(&self, frame: Frame, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.tables.reach(&mapping.process, mapping.page) else {
                continue;
            };
            match guard.view(mapping.page) {
                EntryKind::Page(entry) if entry.frame == frame && entry.writable => {
                    guard.update(mapping.page, Some(gather), |entry| {
                        entry.writable = false;
                        entry.dirty = false;
                    });
                    drop(guard);
                    gather.unlocked();
                }
                // Another CPU has taken the right or the mapping away, and may not have flushed yet.
                // [mutant VmCleansUnflushed]
                _ => self.tables.flush_pending(&mapping.process),
            }
        }
    }

    /// Cuts or extends a file.
    pub(crate) fn truncate(&self, id: FileId, bytes: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let file = self.cache.file(id)?;
        if bytes.div_ceil(PAGE_BYTES) > MAX_PAGES {
            return Err(Error::BadRange);
        }
        let lock = file.lock_length(machine);
        let before = file.pages();
        let keep = bytes.div_ceil(PAGE_BYTES);
        // What may fail comes before anything has changed: the page that is cut in the middle must be in
        // memory, and stays there while its lock is held.
        let at = (bytes % PAGE_BYTES) as usize;
        let cut = at != 0 && keep <= before;
        let tail = cut.then(|| self.tail(id, file, keep - 1)).transpose()?;
        // The length before any slot is emptied: a fault checks it under the page lock, so no page beyond
        // it is mapped after its slot was emptied.
        file.set_bytes(bytes);
        if let Some((mut slot, frame)) = tail
            && let Some(frame) = frame
        {
            // Otherwise the old bytes come back from the device. [mutants VmTruncatesUnmarked, VmTruncateLeavesTail]
            self.cache.mark_dirty(id, keep - 1, &mut slot);
            machine.write_frame(frame, at, &vec![0; PAGE_BYTES as usize - at]);
        }
        let mut page = keep;
        while let Some(used) = file.first_used(page, before) {
            page = before.min(used + CLUSTER as u64);
            self.empty_slots(id, file, used, page);
        }
        drop(lock);
        Ok(0)
    }

    /// The page in which a file is to end: its slot, locked, so that nobody writes behind the end until the
    /// length is set, and its frame unless it reads as zeros.
    fn tail<'f>(&self, id: FileId, file: &'f File<M>, page: u64) -> Result<Tail<'f, M>, Error> {
        let place = file.slot(page).ok_or(Error::BadRange)?;
        let mut slot = place.lock(self.machine());
        let frame = if slot.is_hole() {
            None
        } else {
            Some(self.cached(id, page, &mut slot)?)
        };
        Ok((slot, frame))
    }

    /// Drops the pages `from..to`, mapped or not, from cache and device.
    fn empty_slots(&self, id: FileId, file: &File<M>, from: u64, to: u64) {
        let machine = self.machine();
        let mut gather = self.tables.gather(Purpose::Call);
        let mut locked: Vec<(SlotGuard<'_, M>, Option<Frame>)> = Vec::new();
        for page in from..to {
            let Some(slot) = file.used_slot(page) else {
                continue;
            };
            let mut slot = slot.lock(machine);
            // No mapping leads from the new frame to the places where the page was before. [mutant VmTruncatesShadowed]
            self.cache.flush_shadow_before_refill(&mut slot);
            if let Cached::Stale(frame) = slot.cached() {
                // Back first: then its markers are found like any other mapping.
                let reinstated = self.cache.reinstate(frame, id, page);
                slot.set_cached(if reinstated {
                    Cached::Present(frame)
                } else {
                    Cached::Absent
                });
            }
            let mut gone = None;
            if let Cached::Present(frame) = slot.cached() {
                self.unmap_everywhere(frame, &mut gather);
                gone = Some(frame);
            }
            if slot.is_dirty() {
                self.cache.mark_clean(id, page, &mut slot);
            }
            slot.set_hole();
            locked.push((slot, gone));
        }
        gather.flush();
        for frame in locked.iter().filter_map(|(_, gone)| *gone) {
            self.frames.put(frame);
        }
    }

    /// Takes the frame, whose page is locked, out of every table that maps it.
    fn unmap_everywhere(&self, frame: Frame, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.tables.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if guard.view(mapping.page).frame() == Some(frame) {
                guard.take(mapping.page, EntryKind::Empty, gather);
            } else {
                // Another CPU has cleared it and may not have flushed yet. [mutant VmTruncatesUnflushed]
                self.tables.flush_pending(&mapping.process);
            }
        }
    }
}
