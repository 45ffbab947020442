//! Maps, moves and unmaps pages with flushes of their own, and reports the promises of calls that return.

use super::state::{
    FrameGuard, Kernel, OwnedFrame, Space, bit, is_large, is_table, pages_of, peek, set,
};
use crate::action::Op;
use crate::generated::program::{FILE_PAGES, HUGE, PAGES, Right, WINDOW};
use crate::oracle::Moment;
use crate::word::AdversaryWord;
use crate::{context, tables};
use quell::{Frame, Page, PageRange, PageSize, Purpose, Scope, Word};
use quell_vm::machine::{Event, Machine};
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
            if let Some(entry) = self.mapped(slot, page) {
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
        if let Some(entry) = self.mapped(slot, page) {
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
        let mut pages = pages_of(window).filter_map(|page| self.entry(slot, page));
        if is_table(word) && pages.all(|entry| entry.load(Relaxed) == 0) {
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
        if let Some(entry) = self.mapped(slot, page)
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
        if is_large(held)
            && let Some(table) = self.take_table()
        {
            let block = Frame(large.swap(0, AcqRel) >> 12);
            let range = PageRange::one(Page(window * WINDOW), PageSize::Large);
            // An entry of another page size follows, so on some machines a receipt isn't enough.
            let scope = self.resizing();
            self.engine.this_cpu().flush(space, Some(range), scope);
            self.capture(block, WINDOW);
            for page in pages_of(window).filter(|&page| Self::file_at(page).is_none()).take(2) {
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
        let upper = self.window_entry(slot, window);
        let held = upper.load(Relaxed);
        let entries = || pages_of(window).filter_map(|page| Some((page, self.entry(slot, page)?)));
        let fits = |(page, entry): (u64, &AdversaryWord)| {
            entry.load(Relaxed) == 0 || Self::file_at(page).is_none()
        };
        if is_table(held)
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

    /// Unmaps a page that doesn't belong to a file, and flushes after it has dropped the lock, so several tasks can share
    /// flushes.
    ///
    /// Later observers can't see such a flush. So this kernel counts outstanding ones under the lock, as Linux's
    /// `tlb_flush_pending` does, and a CPU that takes the lock meanwhile flushes first. A task that shares a flush
    /// doesn't, because it relies on no entry of another task. A space isn't retired while one of its flushes is
    /// outstanding.
    pub(super) fn unmap_coalesced(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() || self.here().masked {
            return;
        }
        let began = context::with(|core| core.now);
        if self.join(slot).is_none() {
            return;
        }
        if let Some(space) = self.lock_to_share(slot) {
            self.break_block(slot, page);
            let old = self.mapped(slot, page).map(|entry| Frame(entry.swap(0, AcqRel) >> 12));
            let sharing = &self.sharing[slot];
            set(sharing, peek(sharing) + 1);
            self.unlock(slot);
            self.engine.this_cpu().flush_coalesced(space);
            set(sharing, peek(sharing) - 1);
            if let Some(old) = old {
                let range = PageRange::base(Page(page), 1);
                self.returned(slot, range, began, None);
                self.release(OwnedFrame::Single(old));
            }
        }
        self.quit(slot);
    }

    /// Flushes if a shared flush is outstanding. Called before code relies on an entry of a space whose lock was just
    /// taken.
    pub(super) fn flush_pending_shared(&self, slot: usize, space: &Space) {
        if peek(&self.sharing[slot]) != 0 {
            self.engine.this_cpu().flush(space, None, Scope::Tables);
        }
    }

    /// Unmaps a page, and uses its frame again only when not even speculative loads reach it.
    ///
    /// A kernel does that if, for example, a frame's memory type changes, a guest gets exclusive use of it, or it leaves
    /// the machine. The change is reported as one of leaf entries, so neither it nor the earlier ones that unmapped the
    /// frame interrupt a CPU that has the space loaded lazily. Therefore the judge examines only CPUs that run a space,
    /// and not those that are just resuming one.
    pub(super) fn withdraw(&self, slot: usize, page: u64) {
        if Self::file_at(page).is_some() {
            return;
        }
        let began = context::with(|core| core.now);
        let range = PageRange::base(Page(page), 1);
        let Some(space) = self.lock(slot) else { return };
        self.break_block(slot, page);
        let mut batch = self.batch::<Frame>(Purpose::Call);
        if let Some(entry) = self.mapped(slot, page) {
            batch.hold(Frame(entry.swap(0, AcqRel) >> 12));
            batch.changed(space, range, Scope::Leaf);
        }
        self.unlock(slot);
        if let Some(frame) = batch.finish().next() {
            self.returned(slot, range, began, None);
            self.engine.this_cpu().quiesce();
            context::point(Op::Note);
            let me = self.me();
            let runs = |cpu: usize| {
                let there = self.current[cpu].get();
                there.runs && !there.pinned
            };
            context::with(|core| core.check_withdrawn(me, frame, runs));
            self.release(OwnedFrame::Single(frame));
        }
    }

    /// Reports that a call that unmapped a range, or removed a right to it, returns.
    pub(super) fn returned(
        &self,
        slot: usize,
        range: PageRange,
        began: Moment,
        right: Option<Right>,
    ) {
        let root = self.layout.root(slot);
        let me = self.me();
        context::with(|core| core.set_call_began(me, began));
        self.hw.note(match right {
            Some(right) => Event::ReturnedProtect {
                root,
                range,
                readable: true,
                writable: right != Right::Write,
                executable: right != Right::Execute,
            },
            None => Event::ReturnedUnmap { root, range },
        });
    }

    pub(super) fn confirm(&self, slot: usize, page: u64, pages: u64) {
        let began = context::with(|core| core.now);
        let Some(space) = self.lock(slot) else { return };
        let empty = self.all_empty(slot, page, pages);
        self.unlock(slot);
        if empty {
            self.engine.flush_pending(space);
            self.returned(slot, PageRange::base(Page(page), pages), began, None);
        }
    }

    fn all_empty(&self, slot: usize, page: u64, pages: u64) -> bool {
        let range = page..page.saturating_add(pages);
        let windows =
            (0..2u64).filter(|w| w * WINDOW < range.end && range.start < (w + 1) * WINDOW);
        let large = |window| is_large(self.window_entry(slot, window).load(Relaxed));
        let huge = range.end > HUGE && self.huge_entry(slot).load(Relaxed) & tables::PRESENT != 0;
        let mapped = |page: &u64| self.mapped(slot, *page).is_some();
        !huge
            && !windows.into_iter().any(large)
            && !PAGES.iter().filter(|page| range.contains(page)).any(mapped)
    }
}
