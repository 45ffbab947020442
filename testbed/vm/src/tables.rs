//! Finds the word that maps a page, makes page tables, and frees empty ones.
//!
//! # Walking
//!
//! A walk reads the upper levels without a lock, and locks the table at which it ends. By then the table's frame may
//! have been freed and reused. So each table's frame carries the table's name ([`TableId`]), which is set and cleared
//! under its lock. The walk accepts its result only if the name is still right under the lock; otherwise it restarts
//! from the root. The frame's lock outlives the table, so locking too late is harmless. A root lives as long as its
//! process.

use crate::entry::EntryKind;
use crate::frame::Owner;
use crate::frames::Content;
use crate::machine::{Event, Level, Machine, Path, USER_END, Work};
use crate::mmu_gather::MmuGather;
use crate::processes::Process;
use crate::table::TableGuard;
use crate::table_id::TableId;
use crate::vm::Vm;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use quell::{Frame, Page, PageRange, Purpose, Word};

/// A visitor's choice for a page under migration, whose entry will return with its old rights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigrationHandling {
    /// Visits the entry that represents the page.
    Visit,
    /// Waits for the page.
    Wait,
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Starts to gather changes of entries.
    pub(crate) fn gather(&self, purpose: Purpose) -> MmuGather<'_, 'm, M> {
        MmuGather::new(&self.frames, purpose, self.config.flush_together)
    }

    /// Flushes the process's space if another CPU has cleared entries of it but not flushed them yet (Linux's
    /// `flush_tlb_batched_pending`). Costs two loads if there are none. Lazily cleared entries have markers and don't
    /// count.
    pub(crate) fn flush_pending(&self, process: &Process<M>) {
        self.frames.engine().flush_pending_batches(&process.space);
    }

    /// Locks the lowest table on the path to `page`; its word for the page points to no table.
    pub(crate) fn governing<'v>(
        &'v self,
        process: &'v Arc<Process<M>>,
        page: Page,
    ) -> TableGuard<'v, 'm, M> {
        self.descend(process, page, Level::LEAF)
    }

    /// Locks a table like [`Vm::governing`], but none below `level`; the word may then point to a table.
    pub(crate) fn descend<'v>(
        &'v self,
        process: &'v Arc<Process<M>>,
        page: Page,
        level: Level,
    ) -> TableGuard<'v, 'm, M> {
        loop {
            if let Some(guard) = self.try_descend(process, page, level) {
                return guard;
            }
            self.machine().relax();
        }
    }

    fn try_descend<'v>(
        &'v self,
        process: &'v Arc<Process<M>>,
        page: Page,
        lowest: Level,
    ) -> Option<TableGuard<'v, 'm, M>> {
        let (frame, level) = self.find(process, page, lowest)?;
        let info = self.frames.get(frame)?;
        let guard = TableGuard::lock(&self.frames, process, frame, level, info);
        let valid = guard.is_table_of(page)
            && (level == lowest || !matches!(guard.view(page), EntryKind::Table(_)));
        valid.then_some(guard)
    }

    /// Finds the table that [`Vm::descend`] locks, which may be another at once. `None` if tables change meanwhile.
    fn find(&self, process: &Process<M>, page: Page, lowest: Level) -> Option<(Frame, Level)> {
        let machine = self.machine();
        let (mut frame, mut level) = (process.root(), Level::ROOT);
        while level > lowest {
            // Relaxed: we read the next table only after its name, which publishes it.
            let word = machine.table(frame)[level.index(page)].load(Ordering::Relaxed);
            let EntryKind::Table(next) = EntryKind::of(machine, word, level) else {
                break;
            };
            level = Level(level.0 - 1);
            // The words of a table that was freed in the meantime may name any frame.
            if self.frames.get(next)?.table_id.get() != TableId::new(process.id, level, page) {
                return None;
            }
            frame = next;
        }
        Some((frame, level))
    }

    /// Returns whether the word for `page` mapped nothing at a moment of this call when nobody was changing it.
    pub(crate) fn is_unmapped(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        let view = self.governing(process, page).view(page);
        matches!(view, EntryKind::Empty | EntryKind::Marker(_))
    }

    /// Returns whether the word for `page` mapped nothing at a moment of this call. Takes no lock: a fault looks again
    /// when it has made the page and locks the table.
    pub(crate) fn looks_unmapped(&self, process: &Process<M>, page: Page) -> bool {
        let Some((frame, level)) = self.find(process, page, Level::LEAF) else {
            return false;
        };
        // Relaxed: decides nothing but how the fault begins.
        let word = self.machine().table(frame)[level.index(page)].load(Ordering::Relaxed);
        let view = EntryKind::of(self.machine(), word, level);
        matches!(view, EntryKind::Empty | EntryKind::Marker(_))
    }

    /// Locks a table like [`Vm::governing`], for a walk of a reverse map, which holds nothing of the process.
    /// Returns `None` if the process has ended.
    pub(crate) fn reach<'v>(
        &'v self,
        process: &'v Arc<Process<M>>,
        page: Page,
    ) -> Option<TableGuard<'v, 'm, M>> {
        let root = self.frames.info(process.root());
        let id = TableId::new(process.id, Level::ROOT, Page(0));
        while root.table_id.get() == id {
            if let Some(guard) = self.try_descend(process, page, Level::LEAF) {
                return Some(guard);
            }
            self.machine().relax();
        }
        None
    }

    /// Locks the table of `level` on the path to `page`, and makes missing tables. Stops early at a page that is mapped
    /// at a higher level. Returns `None` if memory is short.
    pub(crate) fn table_for<'v>(
        &'v self,
        process: &'v Arc<Process<M>>,
        page: Page,
        level: Level,
    ) -> Option<TableGuard<'v, 'm, M>> {
        let mut spare = None;
        let found = loop {
            let guard = self.descend(process, page, level);
            if guard.level() == level || guard.view(page) != EntryKind::Empty {
                break Some(guard);
            }
            // We never allocate memory under a table's lock.
            match spare.take() {
                Some(table) => {
                    // The word may have had a large page whose flush is pending. [mutant VmLinksTableUnflushed]
                    guard.break_before_make(EntryKind::Empty, true);
                    guard.link(page, table);
                }
                None => {
                    let below = Level(guard.level().0 - 1);
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

    /// Makes an empty table that isn't linked.
    pub(crate) fn new_table(&self, level: Level) -> Option<Frame> {
        // A walker may read every word. [mutant VmTablesUnzeroed]
        let frame = self.alloc(0, Content::Zeros(0))?;
        let info = self.frames.info(frame);
        info.words_used.store(0, Ordering::Relaxed);
        let mut state = info.state(self.machine());
        // A root still has the kernel's half when it is freed. [mutant VmRootStaysZero]
        state.set_written(Owner::Table);
        self.machine().note(Event::TableAllocated { frame, level });
        self.machine().charge(Work::Path(Path::Table));
        Some(frame)
    }

    /// Frees a table that was never linked, or that no walker can reach.
    pub(crate) fn discard_table(&self, frame: Frame) {
        self.frames.info(frame).table_id.set(TableId::NONE);
        self.machine().note(Event::TableFreed { frame });
        self.frames.put(frame);
    }

    /// Frees a root that no walker can reach. A walk of the reverse map may still read it, under its lock, so we also
    /// clear its name under that lock. Then the frame may get any use.
    pub(crate) fn discard_root(&self, root: Frame) {
        let info = self.frames.info(root);
        let lock = info.lock_table(self.machine(), self.frames.places());
        info.table_id.set(TableId::NONE);
        drop(lock);
        self.discard_table(root);
    }

    /// Makes a root for the process `id`.
    pub(crate) fn new_root(&self, id: u32) -> Option<Frame> {
        let root = self.new_table(Level::ROOT)?;
        self.frames.info(root).table_id.set(TableId::new(id, Level::ROOT, Page(0)));
        self.machine().prepare_root(root);
        Some(root)
    }

    /// Visits each non-empty word of the range once, with its table locked. Also visits the words of 2 MB and 1 GB
    /// pages that the range cuts; split them first.
    pub(crate) fn each_entry(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
        migrating: MigrationHandling,
        mut visit: impl FnMut(&TableGuard<'_, 'm, M>, Page, EntryKind),
    ) {
        let (mut page, end) = (range.start, range.end());
        while page < end {
            let guard = self.governing(process, page);
            let stop = end.min(guard.end(page));
            let mut wait = false;
            while page < stop && !wait {
                match guard.view(page) {
                    EntryKind::Table(_) => break,
                    EntryKind::Moving(_) if migrating == MigrationHandling::Wait => {
                        wait = true;
                        continue;
                    }
                    EntryKind::Empty => {}
                    view => visit(&guard, page, view),
                }
                page = guard.range(page).end();
            }
            if wait {
                guard.await_change(page);
            }
        }
    }

    /// Frees the empty tables in the range. The caller holds the areas. A fault in an area beside the range may share
    /// a table with it: it fills the table first, or finds it gone, as walks of the reverse map do.
    pub(crate) fn free_empty_tables(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
        gather: &mut MmuGather<'_, 'm, M>,
    ) {
        let end = range.end();
        for level in [Level::LARGE, Level::HUGE, Level::ROOT] {
            let span = level.pages();
            let mut page = Page(range.start.0 & !(span - 1));
            while page < end {
                let parent = self.descend(process, page, level);
                let stop = end.min(parent.end(page));
                if parent.level() > level {
                    // This word points to no table. Continue with the next one that does, without another walk from the
                    // root.
                    page = parent.range(page).end();
                    while page < stop && !matches!(parent.view(page), EntryKind::Table(_)) {
                        page = parent.range(page).end();
                    }
                    continue;
                }
                while page < stop {
                    if let EntryKind::Table(_) = parent.view(page) {
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
