//! Files of one page that several spaces map: read in, written, reclaimed at once or lazily, reused, reinstated. All of
//! this happens under the lock of the file.

use super::batches::defer;
use super::state::{FrameGuard, Kernel, MARKER, OwnedFrame, SECRET, peek, set};
use crate::coverage::MachineEvent;
use crate::generated::program::{FILE_PAGES, FILES, SPACES};
use crate::tables;
use quell::{Frame, Page, PageRange, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

impl<'m> Kernel<'m> {
    pub(super) fn unlock_file(&self, file: usize) {
        self.file_locks[file].store(0, Release);
    }

    /// Returns the spaces that may map the file.
    fn mappers(&self, file: usize) -> impl Iterator<Item = usize> + use<> {
        let shape = self.shape;
        (0..usize::from(shape.spaces)).filter(move |&slot| shape.maps(slot, file))
    }

    /// Returns the frame of a file's page. Reads the page in if necessary.
    pub(super) fn filled(&self, file: usize) -> Option<Frame> {
        if let frame @ 1.. = peek(&self.slots[file]) {
            return Some(Frame(frame));
        }
        let frame = self.take_single()?;
        if let old @ 1.. = peek(&self.shadows[file]) {
            for slot in self.mappers(file) {
                let space = self.space(slot);
                self.engine.flush_before_refill(self.deferred_flush(Frame(old)), space);
            }
        }
        self.fill(frame, peek(&self.disks[file]));
        set(&self.slots[file], frame.0);
        Some(frame)
    }

    pub(super) fn content(&self, frame: Frame) -> u64 {
        let mut bytes = [0; 8];
        self.hw.read_frame(frame, 0, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub(super) fn capture(&self, frame: Frame, frames: u64) {
        self.hw.note(Event::Captured { frame, frames });
    }

    pub(super) fn reclaim(&self, file: usize) {
        self.lock_word(&self.file_locks[file]);
        if let frame @ 1.. = peek(&self.slots[file]) {
            let mut batch = self.batch::<FrameGuard<'_, '_>>(Purpose::Reclaim);
            let mut unflushed = 0u16;
            for slot in self.mappers(file) {
                let Some(space) = self.lock(slot) else { continue };
                if let Some(entry) = self.mapped(slot, FILE_PAGES[file]) {
                    entry.swap(0, AcqRel);
                    let range = PageRange::base(Page(FILE_PAGES[file]), 1);
                    batch.changed(space, range, Scope::Leaf);
                } else {
                    unflushed |= 1 << slot;
                }
                self.unlock(slot);
            }
            for held in batch.finish() {
                drop(held);
            }
            self.flush_all_pending(unflushed);
            set(&self.disks[file], self.content(Frame(frame)));
            self.capture(Frame(frame), 1);
            // The frame includes all bytes stored before the flush, and no CPU can store to it any more.
            set(&self.slots[file], 0);
            self.release(OwnedFrame::Single(Frame(frame)));
        }
        self.unlock_file(file);
    }

    pub(super) fn flush_all_pending(&self, slots: u16) {
        for slot in (0..SPACES).filter(|slot| slots >> slot & 1 != 0) {
            self.engine.flush_pending(self.space(slot));
        }
    }

    pub(super) fn reclaim_lazily(&self, files: u8, own: Option<usize>) {
        let wanted = |file: usize| files >> file & 1 != 0;
        for file in (0..FILES).filter(|&file| wanted(file)) {
            self.lock_word(&self.file_locks[file]);
        }
        // We lock every space that maps one of the files.
        let mut held = 0u16;
        for slot in 0..usize::from(self.shape.spaces) {
            let maps = (0..FILES).any(|file| wanted(file) && self.shape.maps(slot, file));
            if maps && self.lock(slot).is_some() {
                held |= 1 << slot;
            }
        }
        let mut batch = self.batch::<Frame>(Purpose::Lazy);
        let mut taken = [None; FILES];
        for file in (0..FILES).filter(|&file| wanted(file)) {
            let slots = || {
                self.mappers(file)
                    .filter(|&slot| held >> slot & 1 != 0)
                    .filter_map(|slot| Some((slot, self.entry(slot, FILE_PAGES[file])?)))
            };
            let frame = peek(&self.slots[file]);
            let writable = tables::PRESENT | tables::WRITABLE;
            if frame == 0 || slots().any(|(_, entry)| entry.load(Relaxed) & writable == writable) {
                continue;
            }
            if let old @ 1.. = peek(&self.shadows[file]) {
                self.reuse_frame(Frame(old), Some(file));
            }
            let frame = Frame(frame);
            for slot in self.mappers(file).filter(|&slot| held >> slot & 1 != 0) {
                // Entries may have lost the right to write, or all rights, in a batch that isn't flushed yet.
                self.engine.flush_pending_batches(self.space(slot));
            }
            set(&self.disks[file], self.content(frame));
            self.capture(frame, 1);
            self.deferred_flush(frame).begin();
            for (slot, entry) in slots() {
                let held = entry.load(Relaxed);
                if held & tables::PRESENT == 0 {
                    continue;
                }
                let executable = held & tables::EXECUTABLE;
                entry.swap(frame.0 << 12 | MARKER | executable, AcqRel);
                let range = PageRange::base(Page(FILE_PAGES[file]), 1);
                batch.changed(self.space(slot), range, Scope::Leaf);
            }
            batch.hold(frame);
            taken[file] = Some(frame);
            set(&self.slots[file], 0);
        }
        let taken_own = own.and_then(|own| Some((own, self.take_own_lazily(own, &mut batch)?)));
        // From here on later observers may come. The entries are cleared and reported, but have no stamp yet.
        for slot in (0..SPACES).filter(|slot| held >> slot & 1 != 0) {
            self.unlock(slot);
        }
        if taken.iter().any(Option::is_some) || taken_own.is_some() {
            let stamp = defer(&mut batch);
            if let Some((own, frame)) = taken_own {
                self.has_taken_own(own, frame, stamp);
            }
            for (file, frame) in taken.into_iter().enumerate() {
                let Some(frame) = frame else { continue };
                match stamp {
                    Some(stamp) => {
                        set(&self.shadows[file], frame.0);
                        set(self.deferrer(frame), file as u64);
                        self.hw.note(Event::FrameFreed { frame, frames: 1 });
                        self.deferred_flush(frame).defer(stamp);
                    }
                    None => {
                        self.deferred_flush(frame).clear();
                        self.release(OwnedFrame::Single(frame));
                    }
                }
            }
        } else {
            drop(batch);
        }
        for file in (0..FILES).filter(|&file| wanted(file)) {
            self.unlock_file(file);
        }
    }

    /// Takes a frame with a deferred flush, if no other CPU has taken it. `locked` is the file that the caller has
    /// locked, if any.
    pub(super) fn reuse_frame(&self, frame: Frame, locked: Option<usize>) {
        if self.engine.flush_before_reuse(self.deferred_flush(frame)).is_none() {
            return;
        }
        self.hw.happen(MachineEvent::Reusable);
        self.hw.note(Event::FrameAllocated { frame, frames: 1 });
        self.fill(frame, SECRET);
        // The frame is ours now, so no other CPU changes its file.
        let file = peek(self.deferrer(frame)) as usize;
        if locked != Some(file) {
            self.lock_word(&self.file_locks[file]);
        }
        if peek(&self.shadows[file]) == frame.0 {
            set(&self.shadows[file], 0);
        }
        if locked != Some(file) {
            self.unlock_file(file);
        }
        let index = frame.0 - self.layout.single(0).0;
        self.free_singles.fetch_or(1 << index, Release);
    }

    pub(super) fn reinstate(&self, file: usize) {
        self.lock_word(&self.file_locks[file]);
        let (slot, shadow) = (peek(&self.slots[file]), peek(&self.shadows[file]));
        if slot == 0 && shadow != 0 {
            let frame = Frame(shadow);
            if self.deferred_flush(frame).reinstate(&self.engine) {
                self.hw.note(Event::FrameReinstated { frame });
                set(&self.slots[file], shadow);
                set(&self.shadows[file], 0);
                for slot in self.mappers(file) {
                    if self.lock(slot).is_none() {
                        continue;
                    }
                    if let Some(entry) = self.entry(slot, FILE_PAGES[file])
                        && let held = entry.load(Relaxed)
                        && held & !tables::EXECUTABLE == frame.0 << 12 | MARKER
                    {
                        // The marker keeps the right to execute. If the mapping loses it meanwhile, reinstating doesn't
                        // return it.
                        let executable = held & tables::EXECUTABLE;
                        entry.store(Self::leaf_word(frame, false) | executable, Release);
                    }
                    self.unlock(slot);
                }
            }
        }
        self.unlock_file(file);
    }

    pub(super) fn write_file(&self, file: usize, value: u64) {
        self.lock_word(&self.file_locks[file]);
        if let Some(frame) = self.filled(file) {
            self.fill(frame, value);
        }
        self.unlock_file(file);
    }
}
