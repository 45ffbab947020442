//! Maps pages, and moves mappings. Each move makes its own flush, under the space's lock.

use super::state::{FrameGuard, Kernel, OwnedFrame, Space, bit};
use crate::cell::AdversaryWord;
use crate::context;
use crate::generated::program::{FILE_PAGES, PAGES, Right, WINDOW};
use crate::tables;
use quell::{Frame, Page, PageRange, PageSize, Purpose, Scope, Word};
use quell_vm::machine::Machine;
use std::sync::atomic::Ordering::{self, AcqRel, Relaxed, Release};

/// Returns the ordering of an entry that publishes content, which was written before. It is the manager's.
pub(super) fn entry_order() -> Ordering {
    // [mutant VmMapsBeforeContent]
    Release
}

impl<'m> Kernel<'m> {
    pub(super) fn map(&self, slot: usize, page: u64, write: bool) {
        if Self::file_at(page).is_some() {
            return;
        }
        let Some(space) = self.lock(slot) else { return };
        if let Some(entry) = self.entry_made(slot, page) {
            let held = entry.load(Relaxed);
            if held & tables::PRESENT == 0
                && let Some(frame) = self.take_single()
            {
                self.make_ready(space, held);
                self.fill(frame, page + 1);
                entry.store(Self::leaf_word(frame, write), entry_order());
            }
        }
        self.unlock(slot);
    }

    pub(super) fn map_large(&self, slot: usize, word: impl FnOnce(&Self) -> &AdversaryWord) {
        let Some(space) = self.lock(slot) else { return };
        let entry = word(self);
        if entry.load(Relaxed) & tables::PRESENT == 0
            && let Some(index) = self.take_bit(&self.free_blocks)
        {
            // A table may have been unlinked there.
            self.engine.flush_pending_tables(space);
            entry.store(Self::leaf_word(self.layout.block(index), true), Release);
        }
        self.unlock(slot);
    }

    pub(super) fn map_file(&self, slot: usize, file: usize, write: bool) {
        if !self.shape.maps(slot, file) {
            return;
        }
        self.lock_word(&self.file_locks[file]);
        if let Some(frame) = self.filled(file)
            && let Some(space) = self.lock(slot)
        {
            if let Some(entry) = self.entry_made(slot, FILE_PAGES[file]) {
                let held = entry.load(Relaxed);
                if held & tables::PRESENT == 0 {
                    self.make_ready(space, held);
                    entry.store(Self::leaf_word(frame, write), entry_order());
                }
            }
            self.unlock(slot);
        }
        self.unlock_file(file);
    }

    pub(super) fn unprotect(&self, slot: usize, page: u64, right: Right) {
        let file = Self::file_at(page);
        if let Some(file) = file {
            self.lock_word(&self.file_locks[file]);
        }
        if let Some(space) = self.lock(slot) {
            self.break_block(slot, page);
            if let Some(entry) = self.entry(slot, page)
                && entry.load(Relaxed) & tables::PRESENT != 0
            {
                entry.fetch_or(bit(right), AcqRel);
                self.engine.this_cpu().refresh(space, PageRange::base(Page(page), 1));
            }
            self.unlock(slot);
        }
        if let Some(file) = file {
            self.unlock_file(file);
        }
    }

    pub(super) fn flush_now(&self, space: &Space, ranges: &[PageRange]) {
        let mut batch = self.batch::<FrameGuard<'_, '_>>(Purpose::Migration);
        for &range in ranges {
            batch.changed(space, range, Scope::Leaf);
        }
        for held in batch.finish() {
            drop(held);
        }
    }

    /// Unmaps a page without a batch. Flushes the `whole` space or only the page.
    pub(super) fn unmap_at_once(&self, slot: usize, page: u64, whole: bool) {
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        self.break_block(slot, page);
        if let Some(entry) = self.entry(slot, page)
            && entry.load(Relaxed) & tables::PRESENT != 0
        {
            let old = Frame(entry.swap(0, AcqRel) >> 12);
            let range = PageRange::base(Page(page), 1);
            self.engine.this_cpu().flush(space, (!whole).then_some(range), Scope::Leaf);
            if Self::file_at(page).is_none() {
                self.release(OwnedFrame::Single(old));
            }
            self.returned(slot, range, began, None);
        }
        self.unlock(slot);
    }

    /// Frees a leaf table that maps nothing, without a batch. Flushes the `whole` space or only the table's range.
    pub(super) fn unlink_at_once(&self, slot: usize, window: u64, whole: bool) {
        let Some(space) = self.lock(slot) else { return };
        let upper = self.window_entry(slot, window);
        let word = upper.load(Relaxed);
        let table = word & tables::PRESENT != 0 && word & tables::TABLE != 0;
        let mut pages = PAGES
            .into_iter()
            .filter(|page| page / WINDOW == window)
            .filter_map(|page| self.entry(slot, page));
        if table && pages.all(|entry| entry.load(Relaxed) == 0) {
            upper.swap(0, AcqRel);
            // We report base pages: if these are more than a machine invalidates one by one, it flushes the whole
            // space.
            let range = PageRange::base(Page(window * WINDOW), WINDOW);
            self.engine.this_cpu().flush(space, (!whole).then_some(range), Scope::Tables);
            self.release(OwnedFrame::Table(Frame(word >> 12)));
        }
        self.unlock(slot);
    }

    pub(super) fn move_page(&self, slot: usize, from: u64, to: u64) {
        let files = Self::file_at(from).is_some() || Self::file_at(to).is_some();
        if files || from == to {
            return;
        }
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        self.break_block(slot, from);
        let range = PageRange::base(Page(from), 1);
        if let (Some(source), Some(target)) = (self.entry(slot, from), self.entry_made(slot, to))
            && source.load(Relaxed) & tables::PRESENT != 0
        {
            let held = target.load(Relaxed);
            if held & tables::PRESENT == 0 {
                self.make_ready(space, held);
                let word = source.swap(0, AcqRel);
                target.store(word, Release);
                self.flush_now(space, &[range]);
                self.returned(slot, range, began, None);
            }
        }
        self.unlock(slot);
    }

    pub(super) fn migrate(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() {
            return;
        }
        let Some(space) = self.lock(slot) else { return };
        self.break_block(slot, page);
        if let Some(entry) = self.entry(slot, page)
            && entry.load(Relaxed) & tables::PRESENT != 0
            && let Some(new) = self.take_single()
        {
            let word = entry.swap(0, AcqRel);
            let old = Frame(word >> 12);
            self.flush_now(space, &[PageRange::base(Page(page), 1)]);
            self.capture(old, 1);
            self.hw.copy_frames(old, new, 1);
            let executable = word & tables::EXECUTABLE;
            let word = Self::leaf_word(new, word & tables::WRITABLE != 0);
            entry.store(word | executable, Release);
            self.release(OwnedFrame::Single(old));
        }
        self.unlock(slot);
    }

    pub(super) fn split(&self, slot: usize, window: u64) {
        let Some(space) = self.lock(slot) else { return };
        let large = self.window_entry(slot, window);
        let held = large.load(Relaxed);
        if held & tables::PRESENT != 0
            && held & tables::TABLE == 0
            && let Some(table) = self.take_table()
        {
            let block = Frame(large.swap(0, AcqRel) >> 12);
            let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
            // An entry of another page size follows, so on some machines a receipt isn't enough.
            let scope = self.resizing();
            self.engine.this_cpu().flush(space, Some(range), scope);
            self.capture(block, WINDOW);
            let pages = PAGES.into_iter().filter(|page| page / WINDOW == window);
            for page in pages.filter(|&page| Self::file_at(page).is_none()).take(2) {
                if let Some(frame) = self.take_single() {
                    self.hw.copy_frames(block.plus(page % WINDOW), frame, 1);
                    let entry = &self.hw.table(table)[(page % WINDOW) as usize];
                    entry.store(Self::leaf_word(frame, true), Relaxed);
                }
            }
            self.link(large, table);
            self.release(OwnedFrame::Block(block));
        }
        self.unlock(slot);
    }

    pub(super) fn collapse(&self, slot: usize, window: u64) {
        let Some(space) = self.lock(slot) else { return };
        let pages = || PAGES.into_iter().filter(move |page| page / WINDOW == window);
        let upper = self.window_entry(slot, window);
        let held = upper.load(Relaxed);
        let table = held & tables::PRESENT != 0 && held & tables::TABLE != 0;
        let entries = || pages().filter_map(|page| Some((page, self.entry(slot, page)?)));
        let fits = |(page, entry): (u64, &AdversaryWord)| {
            entry.load(Relaxed) == 0 || Self::file_at(page).is_none()
        };
        if table
            && entries().all(fits)
            && let Some(index) = self.take_bit(&self.free_blocks)
        {
            let block = self.layout.block(index);
            let mut batch = self.batch(Purpose::Call);
            let mut old = [None; PAGES.len()];
            for ((page, entry), old) in entries().zip(&mut old) {
                let word = entry.load(Relaxed);
                if word & tables::PRESENT != 0 {
                    entry.swap(0, AcqRel);
                    *old = Some((page, Frame(word >> 12)));
                    batch.changed(space, PageRange::base(Page(page), 1), Scope::Leaf);
                }
            }
            upper.swap(0, AcqRel);
            let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
            let what = OwnedFrame::Table(Frame(held >> 12));
            batch.table_unlinked(space, range, FrameGuard { kernel: self, what });
            drop(batch.finish());
            // Other CPUs may have cleared entries here and not flushed yet.
            self.engine.flush_pending_tables(space);
            for (page, frame) in old.into_iter().flatten() {
                self.capture(frame, 1);
                self.hw.copy_frames(frame, block.plus(page % WINDOW), 1);
                self.release(OwnedFrame::Single(frame));
            }
            upper.store(Self::leaf_word(block, true), Release);
        }
        self.unlock(slot);
    }
}
