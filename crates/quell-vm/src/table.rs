//! Page tables: finding the word that governs a page, and the one place where words change.
//!
//! # Walking
//!
//! A walk reads the upper levels without a lock and locks the table it ends at. By then the table
//! may have been freed and be something else. So each table's frame says which table it is
//! ([`TableId`]), set and cleared under its lock, and the walk believes what it found only if that
//! still holds under the lock; otherwise it starts again from the root. The frame's lock outlives
//! the table, so locking too late is harmless. A root lives as long as its process.
//!
//! # Changing
//!
//! All changes of words go through [`TableGuard`], under the table's lock. Each compares the entry
//! before and after with [`flush_needed`] and puts what needs a flush into the caller's
//! [`Gather`] before the lock is dropped; so does each mapping that goes. Hardware sets accessed
//! and dirty bits behind our back, hence the read-modify-writes.

use crate::entry::View;
use crate::frame::{FrameInfo, Mapping, Owner, TableId};
use crate::frames::Content;
use crate::gather::{Gather, Held};
use crate::machine::{Entry, Event, Level, Machine, TABLE_WORDS, USER_END};
use crate::process::Process;
use crate::vm::Vm;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use quell::mutant::Mutant;
use quell::{EntryView, Frame, Need, Page, PageRange, PageSize, Word, flush_needed};

/// How often one looks again before one takes the lock to look.
const PATIENCE: u32 = 64;

/// What a visitor of entries does about a page that is being migrated: its entry comes back with
/// the rights it had.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Migrating {
    Visit,
    Wait,
}

/// A table, locked.
pub(crate) struct TableGuard<'p, 'v, 'm, M: Machine> {
    vm: &'v Vm<'m, M>,
    process: &'p Arc<Process<M>>,
    pub(crate) frame: Frame,
    pub(crate) level: Level,
    info: &'v FrameInfo<M>,
    words: &'v [M::Word; TABLE_WORDS],
}

impl<M: Machine> Drop for TableGuard<'_, '_, '_, M> {
    fn drop(&mut self) {
        self.info.table.unlock();
    }
}

/// What the engine needs to know of an entry.
fn engine_view(view: View, level: Level) -> EntryView {
    let size = level.size().unwrap_or(PageSize::Huge);
    match view {
        View::Page(entry) => EntryView {
            present: true,
            table: false,
            frame: entry.frame,
            size,
            writable: entry.writable,
            user: entry.user,
            executable: entry.executable,
            dirty: entry.dirty,
            accessed: entry.accessed,
            global: entry.global,
        },
        View::Table(frame) => EntryView {
            present: true,
            table: true,
            frame,
            size,
            ..EntryView::default()
        },
        View::Empty | View::Swapped(_) | View::Marker(_) | View::Moving(_) => EntryView::default(),
    }
}

impl<'p, 'v, 'm, M: Machine> TableGuard<'p, 'v, 'm, M> {
    /// The pages that the word for `page` spans.
    pub(crate) fn range(&self, page: Page) -> PageRange {
        let pages = self.level.pages();
        let stride = self.level.size().unwrap_or(PageSize::Huge);
        PageRange {
            start: Page(page.0 & !(pages - 1)),
            pages,
            stride,
        }
    }

    /// The first page after those that the table spans.
    pub(crate) fn end(&self, page: Page) -> Page {
        Page(self.level.base(page).0 + self.level.pages() * TABLE_WORDS as u64)
    }

    fn word(&self, page: Page) -> &'v M::Word {
        &self.words[self.level.index(page)]
    }

    /// What the word for `page` says.
    pub(crate) fn view(&self, page: Page) -> View {
        View::of(
            self.vm.machine(),
            self.word(page).load(Ordering::Acquire),
            self.level,
        )
    }

    /// Gives the lock up and waits until the word for `page` has changed, or for a while.
    ///
    /// So one waits for a page that is being moved: who took the lock to look again each time
    /// could keep out for ever the one that is to bring the page.
    pub(crate) fn await_change(self, page: Page) {
        let machine = self.vm.machine();
        let words = self.words;
        let word = &words[self.level.index(page)];
        let seen = word.load(Ordering::Relaxed);
        drop(self);
        // The table may be freed meanwhile; what the word says then decides nothing but the wait.
        for _ in 0..PATIENCE {
            if word.load(Ordering::Relaxed) != seen {
                break;
            }
            machine.relax();
        }
    }

    fn count(&self, was_empty: bool, is_empty: bool) {
        match (was_empty, is_empty) {
            (true, false) => self.info.used.fetch_add(1, Ordering::Relaxed),
            (false, true) => self.info.used.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Replaces the word without regard to what it was.
    fn replace(&self, page: Page, new: View) -> View {
        let machine = self.vm.machine();
        let word = new.word(machine, self.level);
        // Release: who reads the entry, walkers included, sees what it points to as prepared.
        let old = self.word(page).swap(word, Ordering::AcqRel);
        self.count(old == 0, word == 0);
        View::of(machine, old, self.level)
    }

    /// Fills a word that maps nothing, and lists the mapping. The caller gives one reference to the
    /// block away, and has settled what was there.
    pub(crate) fn map(&self, page: Page, entry: Entry) {
        let page = self.range(page).start;
        let mut state = self.vm.frames.info(entry.frame).state(self.vm.machine());
        // A marker of the same frame is listed already.
        if self.view(page) != View::Marker(entry.frame) || !state.maps(self.process, page) {
            state.map(Mapping {
                process: self.process.clone(),
                page,
            });
        }
        drop(state);
        self.replace(page, View::Page(entry));
    }

    /// Puts a word that names no frame where nothing is mapped.
    pub(crate) fn put(&self, page: Page, view: View) {
        self.replace(page, view);
    }

    /// Takes out what the word maps, if anything, and puts `rest` there. The mapping, with its
    /// reference, goes into the gather; swap slots are for the caller. Returns what was there, with
    /// its last accessed and dirty bits.
    pub(crate) fn take(&self, page: Page, rest: View, gather: &mut Gather<'v, 'm, M>) -> View {
        let range = self.range(page);
        let old = self.replace(page, rest);
        self.harvest(old);
        if let Some((frame, reference)) = self.mapping(range.start, old) {
            let process = self.process.clone();
            let held = Held::Mapping {
                frame,
                process,
                page: range.start,
                reference,
            };
            gather.unmapped(self.process, range, held);
        }
        old
    }

    /// The frame that a word that was just taken out maps or marks, and whether that mapping holds
    /// a reference.
    fn mapping(&self, page: Page, old: View) -> Option<(Frame, bool)> {
        match old {
            View::Page(entry) => Some((entry.frame, true)),
            View::Moving(frame) => Some((frame, true)),
            // A marker counts only while the frame lists it: a claim has voided it otherwise.
            View::Marker(frame) => {
                let state = self.vm.frames.info(frame).state(self.vm.machine());
                let ours = state.maps(self.process, page);
                (ours && !self.vm.machine().mutant(Mutant::VmIgnoresMarker))
                    .then_some((frame, false))
            }
            View::Empty | View::Table(_) | View::Swapped(_) => None,
        }
    }

    /// A page that was written is not known to be zero any more.
    fn harvest(&self, old: View) {
        if let View::Page(entry) = old
            && entry.dirty
            && !self.vm.machine().mutant(Mutant::VmKeepsZeroFlag)
        {
            self.vm
                .frames
                .info(entry.frame)
                .state(self.vm.machine())
                .zeros = false;
        }
    }

    /// Takes a page away for migration or lazily: the mapping stays listed and `rest`, which names
    /// the frame, stands for it. Reported to `changed` if a flush is needed.
    pub(crate) fn suspend(&self, page: Page, rest: View, changed: impl FnOnce(PageRange)) -> View {
        let range = self.range(page);
        let old = self.replace(page, rest);
        self.harvest(old);
        let need = flush_needed(&engine_view(old, self.level), &EntryView::default());
        if need != Need::Nothing {
            changed(range);
        }
        old
    }

    /// Changes a present page's entry, whose frame stays, keeping what the hardware records
    /// meanwhile. A loss of rights goes into the gather.
    pub(crate) fn update(
        &self,
        page: Page,
        gather: Option<&mut Gather<'v, 'm, M>>,
        change: impl Fn(&mut Entry),
    ) {
        let machine = self.vm.machine();
        let word = self.word(page);
        let mut held = word.load(Ordering::Acquire);
        loop {
            let View::Page(old) = View::of(machine, held, self.level) else {
                return;
            };
            let mut new = old;
            change(&mut new);
            if new == old {
                return;
            }
            let raw = machine.encode(new, self.level);
            match word.compare_exchange(held, raw, Ordering::AcqRel, Ordering::Acquire) {
                Err(now) => held = now,
                Ok(_) => {
                    if !new.dirty {
                        self.harvest(View::Page(old));
                    }
                    let old = engine_view(View::Page(old), self.level);
                    let need = flush_needed(&old, &engine_view(View::Page(new), self.level));
                    if let (true, Some(gather)) = (need != Need::Nothing, gather) {
                        gather.changed(self.process, self.range(page));
                    }
                    return;
                }
            }
        }
    }

    /// Whether the table has the word for `page` too.
    pub(crate) fn spans(&self, page: Page) -> bool {
        self.level == Level::LEAF
            && self.info.table_id() == TableId::new(self.process.id, self.level, page)
    }

    /// Takes out a word that maps no frame.
    pub(crate) fn lift(&self, page: Page) -> View {
        self.replace(page, View::Empty)
    }

    /// Moves a mapping, with its reference, to an empty word. The old place stays in the reverse map
    /// until the gather has flushed it.
    pub(crate) fn move_page(
        &self,
        from: Page,
        target: &TableGuard<'_, 'v, 'm, M>,
        to: Page,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        let View::Page(entry) = self.replace(from, View::Empty) else {
            return;
        };
        target.map(to, entry);
        let (frame, process) = (entry.frame, self.process.clone());
        let held = Held::Mapping {
            frame,
            process,
            page: from,
            reference: false,
        };
        gather.unmapped(self.process, self.range(from), held);
    }

    /// Links an empty table, which [`Vm::new_table`] has made, below an empty word.
    pub(crate) fn link(&self, page: Page, table: Frame) {
        let level = Level(self.level.0 - 1);
        self.vm
            .frames
            .info(table)
            .set_table_id(TableId::new(self.process.id, level, page));
        self.replace(page, View::Table(table));
    }

    /// Unlinks the table below the word for `page`, which this CPU has locked as `child`, and hands
    /// it to the gather. What it maps must have been taken out.
    pub(crate) fn unlink(
        &self,
        page: Page,
        child: TableGuard<'p, 'v, 'm, M>,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        let range = self.range(page);
        let stride = child.level.size().unwrap_or(PageSize::Huge);
        child.info.set_table_id(TableId::NONE);
        self.replace(page, View::Empty);
        gather.table_unlinked(self.process, PageRange { stride, ..range }, child.frame);
    }

    /// Whether all words are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.info.used.load(Ordering::Relaxed) == 0
    }
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Locks the lowest table on the path to `page`: its word for the page points to no table.
    pub(crate) fn governing<'p, 'v>(
        &'v self,
        process: &'p Arc<Process<M>>,
        page: Page,
    ) -> TableGuard<'p, 'v, 'm, M> {
        self.descend(process, page, Level::LEAF)
    }

    /// As [`Vm::governing`], but goes no lower than `level`: the word may point to a table there.
    pub(crate) fn descend<'p, 'v>(
        &'v self,
        process: &'p Arc<Process<M>>,
        page: Page,
        level: Level,
    ) -> TableGuard<'p, 'v, 'm, M> {
        loop {
            if let Some(guard) = self.try_descend(process, page, level) {
                return guard;
            }
            self.machine().relax();
        }
    }

    fn try_descend<'p, 'v>(
        &'v self,
        process: &'p Arc<Process<M>>,
        page: Page,
        lowest: Level,
    ) -> Option<TableGuard<'p, 'v, 'm, M>> {
        let machine = self.machine();
        let (mut frame, mut level) = (process.root(), Level::ROOT);
        while level > lowest {
            let word = machine.table(frame)[level.index(page)].load(Ordering::Acquire);
            let View::Table(next) = View::of(machine, word, level) else {
                break;
            };
            level = Level(level.0 - 1);
            // Words of a table that was freed meanwhile may name anything.
            if self.frames.get(next)?.table_id() != TableId::new(process.id, level, page) {
                return None;
            }
            frame = next;
        }
        let info = self.frames.get(frame)?;
        info.table.lock(machine);
        let guard = TableGuard {
            vm: self,
            process,
            frame,
            level,
            info,
            words: machine.table(frame),
        };
        let valid = info.table_id() == TableId::new(process.id, level, page)
            && (level == lowest || !matches!(guard.view(page), View::Table(_)));
        valid.then_some(guard)
    }

    /// As [`Vm::governing`], for who comes from a reverse map and holds nothing of the process.
    /// `None` if the process has ended.
    pub(crate) fn reach<'p, 'v>(
        &'v self,
        process: &'p Arc<Process<M>>,
        page: Page,
    ) -> Option<TableGuard<'p, 'v, 'm, M>> {
        let root = self.frames.info(process.root());
        let id = TableId::new(process.id, Level::ROOT, Page(0));
        while root.table_id() == id {
            if let Some(guard) = self.try_descend(process, page, Level::LEAF) {
                return Some(guard);
            }
            self.machine().relax();
        }
        None
    }

    /// Locks the table of `level` on the path to `page`, making the tables that are missing.
    /// A page mapped at a higher level ends the way down early. `None` if memory is short.
    pub(crate) fn table_for<'p, 'v>(
        &'v self,
        process: &'p Arc<Process<M>>,
        page: Page,
        level: Level,
    ) -> Option<TableGuard<'p, 'v, 'm, M>> {
        let mut spare = None;
        let found = loop {
            let guard = self.descend(process, page, level);
            if guard.level == level || guard.view(page) != View::Empty {
                break Some(guard);
            }
            // Memory is never allocated under a table's lock.
            match spare.take() {
                Some(table) => guard.link(page, table),
                None => {
                    let below = Level(guard.level.0 - 1);
                    drop(guard);
                    spare = self.new_table(below);
                    if spare.is_none() {
                        break None;
                    }
                }
            }
        };
        if let Some(table) = spare {
            self.discard_table(table);
        }
        found
    }

    /// An empty table that is linked nowhere.
    pub(crate) fn new_table(&self, level: Level) -> Option<Frame> {
        let frame = self.allocate(0, Content::Zeros(0))?;
        let info = self.frames.info(frame);
        info.used.store(0, Ordering::Relaxed);
        let mut state = info.state(self.machine());
        state.owner = Owner::Table;
        state.zeros = false;
        self.machine().note(Event::TableAllocated { frame, level });
        Some(frame)
    }

    /// Gives back a table that was never linked, or that no walker can reach.
    pub(crate) fn discard_table(&self, frame: Frame) {
        self.frames.info(frame).set_table_id(TableId::NONE);
        self.machine().note(Event::TableFreed { frame });
        self.put(frame);
    }

    /// A root for the process `id`.
    pub(crate) fn new_root(&self, id: u32) -> Option<Frame> {
        let root = self.new_table(Level::ROOT)?;
        self.frames
            .info(root)
            .set_table_id(TableId::new(id, Level::ROOT, Page(0)));
        self.machine().prepare_root(root);
        Some(root)
    }

    /// Visits each word that is not empty in `start..end`, once, with its table locked. The words
    /// of 2 MB and 1 GB pages that the range cuts are visited too; split them first.
    pub(crate) fn each_entry<'v>(
        &'v self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
        migrating: Migrating,
        mut visit: impl FnMut(&TableGuard<'_, 'v, 'm, M>, Page, View),
    ) {
        let mut page = start;
        while page < end {
            let guard = self.governing(process, page);
            let stop = end.min(guard.end(page));
            let mut wait = false;
            while page < stop && !wait {
                match guard.view(page) {
                    View::Table(_) => break,
                    View::Moving(_) if migrating == Migrating::Wait => {
                        wait = true;
                        continue;
                    }
                    View::Empty => {}
                    view => visit(&guard, page, view),
                }
                page = guard.range(page).end();
            }
            if wait {
                guard.await_change(page);
            }
        }
    }

    /// Frees the tables in `start..end` that are empty. The caller holds the areas, so nobody fills
    /// them; walkers through the reverse map find them gone.
    pub(crate) fn free_empty_tables<'v>(
        &'v self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
        gather: &mut Gather<'v, 'm, M>,
    ) {
        for level in [Level::LARGE, Level::HUGE, Level::ROOT] {
            let span = level.pages();
            let mut page = Page(start.0 & !(span - 1));
            while page < end {
                let parent = self.descend(process, page, level);
                if parent.level > level {
                    // Nothing below the word: on to the next word of that level.
                    page = parent.range(page).end();
                    continue;
                }
                let stop = end.min(parent.end(page));
                while page < stop {
                    if let View::Table(_) = parent.view(page) {
                        // The parent's lock keeps the child in place.
                        let child = self.descend(process, page, Level(level.0 - 1));
                        if child.is_empty() {
                            parent.unlink(page, child, gather);
                        }
                    }
                    page = page.plus(span);
                }
            }
        }
        debug_assert!(end <= USER_END);
    }
}
