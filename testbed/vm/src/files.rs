//! Performs operations on files: read, write, `fdatasync`, `ftruncate`.
//!
//! `fdatasync` and `ftruncate` walk the reverse map of each page under its page lock. If a listed entry is absent,
//! another CPU cleared it and may not have flushed yet. So they flush that space before they mark the page clean or
//! free it.

use crate::entry::EntryKind;
use crate::frames::CLUSTER;
use crate::machine::{Machine, Work};
use crate::mmu_gather::MmuGather;
use crate::page_cache::{File, MAX_PAGES, SlotGuard, SlotState};
use crate::syscall::{Error, FileId};
use crate::vm::Vm;
use alloc::vec;
use alloc::vec::Vec;
use quell::PAGE_BYTES;
use quell::{Frame, Purpose};

/// The last page of a file: its locked slot, and its frame unless the page reads as zeros.
type Tail<'f, M> = (SlotGuard<'f, M>, Option<Frame>);

impl<'m, M: Machine> Vm<'m, M> {
    /// Writes eight bytes.
    pub(crate) fn write_file(&self, id: FileId, offset: u64, value: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let (file, page, at) = self.file_word(id, offset)?;
        let place = file.slot(page).ok_or(Error::BadRange)?;
        let mut slot = place.lock(machine);
        // A write within the file is ordered before any truncation that will empty this slot.
        let mut _length = None;
        let lengthens = offset + 8 > file.bytes();
        if lengthens {
            // Lock order: the length before any slot.
            drop(slot);
            // A truncation may have set the new length but not emptied the slots beyond it yet. Wait for it, or it
            // would take our bytes away. [mutant VmLengthensUnlocked]
            _length = Some(file.lock_length(machine));
            slot = place.lock(machine);
        }
        let frame = self.cached_frame(id, page, &mut slot)?;
        // Nothing can fail from here on, so a write that finds no memory leaves the length unchanged.
        if lengthens {
            file.length.extend(offset + 8);
        }
        // [mutant VmWritesUnmarked]
        self.cache.mark_dirty(id, page, &mut slot);
        machine.write_frame(frame, at, &value.to_le_bytes());
        Ok(0)
    }

    /// Reads eight bytes.
    pub(crate) fn read_file(&self, id: FileId, offset: u64) -> Result<u64, Error> {
        let (file, page, at) = self.file_word(id, offset)?;
        let mut slot = file.slot(page).ok_or(Error::BeyondEnd)?.lock(self.machine());
        // The rest of the last page is in memory, but not in the file. [mutant VmReadsBehindEnd]
        if offset + 8 > file.bytes() {
            return Err(Error::BeyondEnd);
        }
        let frame = self.cached_frame(id, page, &mut slot)?;
        let mut bytes = [0; 8];
        self.machine().read_frame(frame, at, &mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    /// Returns the frame that caches a page.
    pub(crate) fn cached_frame(
        &self,
        id: FileId,
        page: u64,
        slot: &mut SlotGuard<'_, M>,
    ) -> Result<Frame, Error> {
        let frame = self.cache.get(id, page, slot, |content| self.alloc(0, content));
        frame.ok_or(Error::OutOfMemory)
    }

    /// Returns the file, the page, and the offset in it of the eight bytes at `offset`.
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

    /// Writes a file's dirty pages to its device (`fdatasync`). Returns their number.
    pub(crate) fn sync(&self, id: FileId) -> Result<u64, Error> {
        let machine = self.machine();
        let file = self.cache.file(id)?;
        let pages = file.dirty_pages(machine);
        // A simple kernel cleans one page at a time. With batching, 32 pages share one flush.
        let together = if self.frames.engine().policy().batch { CLUSTER } else { 1 };
        let mut written = 0;
        for chunk in pages.chunks(together) {
            let mut gather = self.gather(Purpose::Reclaim);
            let mut locked: Vec<(u64, SlotGuard<'_, M>, Frame)> = Vec::with_capacity(chunk.len());
            for &page in chunk {
                let Some(slot) = file.used_slot(page) else {
                    continue;
                };
                let slot = slot.lock(machine);
                let SlotState::Present(frame) = slot.cached else {
                    continue;
                };
                if slot.dirty {
                    self.write_protect(frame, &mut gather);
                    locked.push((page, slot, frame));
                }
            }
            // We flush first: a page is clean only when no CPU can store to it without a fault. [mutant
            // VmCleansBeforeFlush]
            gather.flush();
            for (page, slot, frame) in &mut locked {
                self.cache.write_back(id, *page, slot, *frame);
                written += 1;
            }
        }
        Ok(written)
    }

    /// Removes the right to write from every mapping of the frame, whose page is locked.
    fn write_protect(&self, frame: Frame, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
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
                // Another CPU removed the right or the mapping, and may not have flushed yet. [mutant
                // VmCleansUnflushed]
                _ => self.flush_pending(&mapping.process),
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
        // Do everything that can fail before anything changes. The page that is cut in the middle must be in memory,
        // and stays there while we hold its lock. A file that doesn't become shorter is cut, too: programs may have
        // stored behind its end. [mutant VmTruncatesOnlyShorter]
        let at = (bytes % PAGE_BYTES) as usize;
        let cut = at != 0 && keep <= before;
        let tail = cut.then(|| self.file_tail(id, file, keep - 1)).transpose()?;
        // Set the length before we empty any slot. A fault checks it under the page lock, so it maps no page beyond it
        // after the slot was emptied.
        file.length.set(bytes);
        if let Some((mut slot, frame)) = tail
            && let Some(frame) = frame
        {
            // We mark it, or the old bytes would return from the device. [mutants VmTruncatesUnmarked,
            // VmTruncateLeavesTail]
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

    /// Returns the page in which a file will end. Its slot is locked, so that nobody writes beyond the end until the
    /// length is set. The frame is missing if the page reads as zeros.
    fn file_tail<'f>(
        &self,
        id: FileId,
        file: &'f File<M>,
        page: u64,
    ) -> Result<Tail<'f, M>, Error> {
        let place = file.slot(page).ok_or(Error::BadRange)?;
        let mut slot = place.lock(self.machine());
        let frame =
            if slot.is_hole() { None } else { Some(self.cached_frame(id, page, &mut slot)?) };
        Ok((slot, frame))
    }

    /// Drops the pages `from..to`, mapped or not, from cache and device.
    fn empty_slots(&self, id: FileId, file: &File<M>, from: u64, to: u64) {
        let machine = self.machine();
        let mut gather = self.gather(Purpose::Call);
        let mut locked: Vec<(SlotGuard<'_, M>, Option<Frame>)> = Vec::new();
        for page in from..to {
            let Some(slot) = file.used_slot(page) else {
                continue;
            };
            let mut slot = slot.lock(machine);
            // We flush here because the new frame's reverse map doesn't list the page's earlier places. [mutant
            // VmTruncatesShadowed]
            self.cache.flush_shadow_before_refill(&mut slot);
            if let SlotState::Stale(frame) = slot.cached {
                // Reinstate the frame first: then its markers are found like other mappings.
                let reinstated = self.cache.reinstate(frame, id, page);
                slot.cached =
                    if reinstated { SlotState::Present(frame) } else { SlotState::Absent };
            }
            let mut gone = None;
            if let SlotState::Present(frame) = slot.cached {
                self.unmap_everywhere(frame, &mut gather);
                gone = Some(frame);
            }
            if slot.dirty {
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

    /// Removes the frame, whose page is locked, from every table that maps it.
    fn unmap_everywhere(&self, frame: Frame, gather: &mut MmuGather<'_, 'm, M>) {
        for mapping in &self.frames.mappings(frame) {
            self.machine().charge(Work::ReverseMap);
            let Some(guard) = self.reach(&mapping.process, mapping.page) else {
                continue;
            };
            if guard.view(mapping.page).frame() == Some(frame) {
                guard.take(mapping.page, EntryKind::Empty, gather);
            } else {
                // Another CPU cleared the entry, and may not have flushed yet. [mutant VmTruncatesUnflushed]
                self.flush_pending(&mapping.process);
            }
        }
    }
}
