//! Keeps files and the page cache.
//!
//! A file is a length and a list of slots, one per page. Each slot has its own lock, the page lock, and names the frame
//! that caches the page, if there is one. A slot that was emptied lazily (S3) still names its frame, and the page may
//! be reinstated from that frame. Another frame fills the slot only after the old one was reused, which made the
//! deferred flush (C4).
//!
//! The device behind a file is memory; pages of zeros take no space on it.
//!
//! # Dirty pages
//!
//! A fault marks the slot dirty before it maps a shared page writable. Only `sync` ([`crate::files`]) and reclaim mark
//! a page clean. They first write-protect or clear every listed mapping *and flush*, including mappings that another
//! CPU has cleared but not yet flushed. So no writable translation of a clean page exists, stale or not. For that
//! reason reclaim may defer the flush of clean pages.

use crate::frame::Owner;
use crate::frames::{Content, Frames};
use crate::length::Length;
use crate::lock::{Guard, Lock, QueuedLock};
use crate::machine::{Event, LockUse, Machine, Path, Work};
use crate::masked_lock::MaskedLock;
use crate::segmented::{SegmentedArray, SparseArray};
use crate::syscall::{Error, FileId};
use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use once_cell::race::OnceBox;
use quell::PAGE_BYTES;
use quell::{Frame, Stamp};

/// The longest file: 64 GB.
pub(crate) const MAX_PAGES: u64 = 1 << 24;
/// The limit on files. Several CPUs that make the last files at once may exceed it slightly.
const MAX_FILES: FileId = 1 << 16;

/// A slot's record of its frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SlotState {
    /// The page isn't in memory.
    #[default]
    Absent,
    /// The frame holds the page.
    Present(Frame),
    /// Unmapped lazily: the frame contains the page until it is reused.
    Stale(Frame),
}

/// One page of a file.
#[derive(Default)]
pub(crate) struct Slot {
    /// The frame of the page.
    pub(crate) cached: SlotState,
    /// The page was written since it was last on the device.
    pub(crate) dirty: bool,
    /// The stamp at which the flush of the page's last old frame was deferred. Stale translations may still read that
    /// frame, or an earlier one.
    shadow: Option<Stamp>,
    /// The content on the device; `None` for zeros.
    device: Option<Box<[u8]>>,
}

impl Slot {
    /// Returns whether the page is neither in memory nor on the device, and so reads as zeros.
    pub(crate) fn is_hole(&self) -> bool {
        self.cached == SlotState::Absent && self.device.is_none()
    }

    /// Returns whether the device holds these bytes.
    pub(crate) fn is_on_device(&self, bytes: &[u8]) -> bool {
        match &self.device {
            Some(data) => **data == *bytes,
            None => bytes.iter().all(|&byte| byte == 0),
        }
    }

    /// Returns eight bytes from the device.
    fn on_device(&self, offset: usize) -> u64 {
        let mut bytes = [0; 8];
        if let Some(data) = &self.device {
            bytes.copy_from_slice(&data[offset..offset + 8]);
        }
        u64::from_le_bytes(bytes)
    }

    /// Records that the page moved to `to`, and that its old frame's flush is deferred as of `deferred`. An earlier
    /// move's deferred flush has an older stamp, so the same flush covers it.
    pub(crate) fn set_moved(&mut self, to: Frame, deferred: Stamp) {
        self.cached = SlotState::Present(to);
        self.shadow = Some(deferred);
    }

    /// Cuts the page off: it is then neither in memory nor on the device.
    pub(crate) fn set_hole(&mut self) {
        self.device = None;
        self.cached = SlotState::Absent;
    }
}

/// A file.
pub(crate) struct File<M: Machine> {
    pub(crate) length: Length<M::Word>,
    /// Held by the CPU that changes the length, until it has also changed the slots.
    truncation: Lock<M::Word, ()>,
    slots: SparseArray<QueuedLock<M::Word, Slot>>,
    /// The dirty pages.
    dirty: MaskedLock<M::Word, BTreeSet<u64>>,
}

impl<M: Machine> File<M> {
    fn new(bytes: u64) -> Self {
        File {
            length: Length::new(bytes),
            truncation: Lock::new(()),
            slots: SparseArray::new(),
            dirty: MaskedLock::new(BTreeSet::new()),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.length.get()
    }

    /// Locks the length. Take this lock before that of any slot.
    pub(crate) fn lock_length(&self, machine: &M) -> Guard<'_, M::Word, ()> {
        self.truncation.lock(machine)
    }

    /// Returns the number of pages of the file.
    pub(crate) fn pages(&self) -> u64 {
        self.bytes().div_ceil(PAGE_BYTES)
    }

    /// Returns the slot of a page below the largest length.
    pub(crate) fn slot(&self, page: u64) -> Option<&QueuedLock<M::Word, Slot>> {
        let small = (page < MAX_PAGES).then_some(page as usize)?;
        self.slots.get_or_make(small, || QueuedLock::new(Slot::default()))
    }

    /// Returns the slot of a page if it was ever used.
    pub(crate) fn used_slot(&self, page: u64) -> Option<&QueuedLock<M::Word, Slot>> {
        self.slots.get(page as usize)
    }

    /// Returns the first page in `from..below` that may have been used.
    pub(crate) fn first_used(&self, from: u64, below: u64) -> Option<u64> {
        let found = self.slots.first_made(from as usize, below as usize);
        found.map(|page| page as u64)
    }

    /// Returns the pages that are dirty at this moment, in ascending order.
    pub(crate) fn dirty_pages(&self, machine: &M) -> Vec<u64> {
        self.dirty.lock(machine).iter().copied().collect()
    }
}

/// A locked slot: the page lock of a file's page.
pub(crate) type SlotGuard<'v, M> = Guard<'v, <M as quell::Hardware>::Word, Slot>;

/// All files and their pages in memory.
pub(crate) struct PageCache<'m, M: Machine> {
    frames: Arc<Frames<'m, M>>,
    files: SegmentedArray<OnceBox<File<M>>, 4>,
    made: AtomicU32,
}

impl<'m, M: Machine> PageCache<'m, M> {
    pub(crate) fn new(frames: Arc<Frames<'m, M>>) -> Self {
        PageCache { frames, files: SegmentedArray::new(), made: AtomicU32::new(0) }
    }

    fn machine(&self) -> &'m M {
        self.frames.machine()
    }

    /// Returns the file with this name.
    pub(crate) fn file(&self, file: FileId) -> Result<&File<M>, Error> {
        // Relaxed: storing the file in its place publishes it.
        let made = self.made.load(Ordering::Relaxed);
        let found = (file < made).then(|| self.files.get(file as usize)).flatten();
        found.and_then(|file| file.get()).ok_or(Error::NoFile)
    }

    /// Creates a file of `bytes` zeros. Files are never removed, so there are at most [`MAX_FILES`].
    pub(crate) fn create(&self, bytes: u64) -> Result<FileId, Error> {
        if bytes.div_ceil(PAGE_BYTES) > MAX_PAGES {
            return Err(Error::BadRange);
        }
        if self.made.load(Ordering::Relaxed) >= MAX_FILES {
            return Err(Error::NoSpace);
        }
        let id = self.made.fetch_add(1, Ordering::Relaxed);
        let place = self.files.get_or_make(id as usize, OnceBox::new);
        place.ok_or(Error::NoSpace)?.get_or_init(|| Box::new(File::new(bytes)));
        Ok(id)
    }

    /// Returns the frame that caches the page, after reinstating or reading it if necessary. The slot holds a reference
    /// to it. Returns `None` if memory is short.
    pub(crate) fn get(
        &self,
        file: FileId,
        page: u64,
        slot: &mut SlotGuard<'_, M>,
        alloc: impl FnOnce(Content) -> Option<Frame>,
    ) -> Option<Frame> {
        let machine = self.machine();
        machine.charge(Work::CacheLookup);
        match slot.cached {
            SlotState::Present(frame) => return Some(frame),
            SlotState::Stale(frame) => {
                // The page's markers name this frame. Refill the slot with it, unless another CPU has reused it and
                // made the deferred flush. [mutant VmRefillsDeferredSlot]
                if self.reinstate(frame, file, page) {
                    slot.cached = SlotState::Present(frame);
                    return Some(frame);
                }
                slot.cached = SlotState::Absent;
            }
            SlotState::Absent => {}
        }
        let content = if slot.device.is_some() { Content::Any } else { Content::Zeros(0) };
        let frame = alloc(content)?;
        machine.charge(Work::ReadDevice { bytes: PAGE_BYTES });
        machine.charge(Work::Path(Path::CacheInsert));
        machine.charge(Work::Locked(LockUse::File(file)));
        machine.charge(Work::Locked(LockUse::ListAdd(frame)));
        if let Some(data) = &slot.device {
            machine.write_frame(frame, 0, data);
        }
        let mut state = self.frames.state(frame);
        state.set_written(Owner::File(file, page));
        slot.cached = SlotState::Present(frame);
        Some(frame)
    }

    /// Reinstates a stale frame for its page, unless it was reused.
    pub(crate) fn reinstate(&self, frame: Frame, file: FileId, page: u64) -> bool {
        let info = self.frames.info(frame);
        let mut state = info.state(self.machine());
        // A reused frame may be stale again, as another page. A reuse changes the owner under this lock, so both checks
        // see the same moment. [mutant VmReinstatesOtherPage]
        let own = state.owner == Owner::File(file, page);
        let reinstated = own && info.deferred_flush.reinstate(self.frames.engine());
        if reinstated {
            state.references = 1;
            self.machine().note(Event::FrameReinstated { frame });
        }
        reinstated
    }

    /// Makes the deferred flushes of the page's old frames. Call it before the bytes change, because stale translations
    /// may still lead to those frames. Costs one load if these flushes were made already.
    pub(crate) fn flush_shadow_before_refill(&self, slot: &mut SlotGuard<'_, M>) {
        if let Some(deferred) = slot.shadow.take() {
            // [mutant VmWritesShadowedPage]
            self.frames.engine().flush_until(deferred);
        }
    }

    /// Marks the page dirty before it is written.
    pub(crate) fn mark_dirty(&self, file: FileId, page: u64, slot: &mut SlotGuard<'_, M>) {
        self.flush_shadow_before_refill(slot);
        if !slot.dirty {
            slot.dirty = true;
            if let Ok(file) = self.file(file) {
                file.dirty.lock(self.machine()).insert(page);
            }
        }
    }

    /// Writes the page to the device and marks it clean. No writable translation of it may be left anywhere.
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
        // Until everything is written, the device holds the old page.
        let mut data: Box<[u8]> = vec![0; PAGE_BYTES as usize].into();
        // [mutant VmWritesBackOldBytes]
        machine.read_frame(frame, 0, &mut data);
        slot.device = data.iter().any(|&byte| byte != 0).then_some(data);
        self.mark_clean(file, page, slot);
    }

    /// Marks the page clean.
    pub(crate) fn mark_clean(&self, file: FileId, page: u64, slot: &mut SlotGuard<'_, M>) {
        slot.dirty = false;
        if let Ok(file) = self.file(file) {
            file.dirty.lock(self.machine()).remove(&page);
        }
    }

    /// Returns eight bytes of a file, for an oracle.
    ///
    /// # Safety
    /// As for [`QueuedLock::peek`], for every lock of the cache and of the frames.
    pub(crate) unsafe fn peek(&self, id: FileId, page: u64, offset: usize) -> Option<u64> {
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
            SlotState::Present(frame) => Some(frame),
            SlotState::Stale(frame) => {
                // SAFETY: passed on to the caller.
                let owner = unsafe { self.frames.info(frame).peek_owner() };
                (owner == Owner::File(id, page)).then_some(frame)
            }
            SlotState::Absent => None,
        };
        if let Some(frame) = frame {
            self.machine().read_frame(frame, offset, &mut bytes);
            return Some(u64::from_le_bytes(bytes));
        }
        Some(slot.on_device(offset))
    }

    /// Returns eight bytes of the device behind a file, for an oracle.
    ///
    /// # Safety
    /// As for [`QueuedLock::peek`], for every lock of the cache.
    pub(crate) unsafe fn peek_device(&self, id: FileId, page: u64, offset: usize) -> Option<u64> {
        let file = self.file(id).ok().filter(|file| page < file.pages())?;
        // SAFETY: passed on to the caller.
        Some(file.used_slot(page).map_or(0, |slot| unsafe { slot.peek() }.on_device(offset)))
    }
}
