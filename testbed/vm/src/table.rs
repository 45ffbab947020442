//! Changes the words of a page table under its lock. No other code changes them.
//!
//! All changes of words use [`TableGuard`], and each compares the entry before and after with [`flush_needed`]. Removed
//! mappings, and changes that need a flush, are put into the caller's [`MmuGather`] before the lock is dropped. The
//! hardware may set accessed and dirty bits at any time, so changes are read-modify-writes.

use crate::entry::EntryKind;
use crate::frame::FrameInfo;
use crate::frames::Frames;
use crate::machine::{Entry, Level, Machine, TABLE_WORDS};
use crate::mmu_gather::{BlockReference, MmuGather, WaitingObject};
use crate::processes::Process;
use crate::table_id::TableId;
use crate::table_lock::TableLockGuard;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use quell::{Break, Frame, Need, Page, PageRange, PageSize, TlbRules, Word, flush_needed};

/// The number of times that a waiting CPU reads a word before it takes the lock to check it.
const PATIENCE: u32 = 64;

/// A locked table.
pub(crate) struct TableGuard<'v, 'm, M: Machine> {
    frames: &'v Frames<'m, M>,
    process: &'v Arc<Process<M>>,
    frame: Frame,
    level: Level,
    info: &'v FrameInfo<M>,
    words: &'v [M::Word; TABLE_WORDS],
    _lock: TableLockGuard<'v, M>,
}

impl<'v, 'm, M: Machine> TableGuard<'v, 'm, M> {
    /// Locks the table in `frame`, which `info` describes. The caller then checks whether it is still the intended
    /// table.
    pub(crate) fn lock(
        frames: &'v Frames<'m, M>,
        process: &'v Arc<Process<M>>,
        frame: Frame,
        level: Level,
        info: &'v FrameInfo<M>,
    ) -> Self {
        let machine = frames.machine();
        let lock = info.lock_table(machine, frames.places());
        TableGuard { frames, process, frame, level, info, words: machine.table(frame), _lock: lock }
    }

    /// Returns the level of the table.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Returns whether the frame is the table of this level that translates `page` for this process.
    pub(crate) fn is_table_of(&self, page: Page) -> bool {
        self.info.table_id.get() == TableId::new(self.process.id, self.level, page)
    }

    /// Returns the pages that the word for `page` spans.
    pub(crate) fn range(&self, page: Page) -> PageRange {
        let pages = self.level.pages();
        let stride = self.level.size().unwrap_or(PageSize::Huge);
        PageRange { start: Page(page.0 & !(pages - 1)), pages, stride }
    }

    /// Returns the first page after those that the table spans.
    pub(crate) fn end(&self, page: Page) -> Page {
        Page(self.level.base(page).0 + self.level.pages() * TABLE_WORDS as u64)
    }

    fn word(&self, page: Page) -> &'v M::Word {
        &self.words[self.level.index(page)]
    }

    /// Returns the decoded word for `page`.
    pub(crate) fn view(&self, page: Page) -> EntryKind {
        // Relaxed: the kernel changes words only under the lock.
        let word = self.word(page).load(Ordering::Relaxed);
        EntryKind::of(self.frames.machine(), word, self.level)
    }

    /// Unlocks the table and waits until the word for `page` has changed, or for a while.
    ///
    /// A CPU that waits for a page under migration uses this. If it took the lock for every check, it could keep out
    /// the migrating CPU for ever, which needs the lock to map the page.
    pub(crate) fn await_change(self, page: Page) {
        let machine = self.frames.machine();
        let words = self.words;
        let word = &words[self.level.index(page)];
        let seen = word.load(Ordering::Relaxed);
        drop(self);
        // The table may be freed in the meantime. Then the word only affects how long we wait.
        for _ in 0..PATIENCE {
            if word.load(Ordering::Relaxed) != seen {
                break;
            }
            machine.relax();
        }
    }

    /// Replaces the word, whatever it was.
    fn replace(&self, page: Page, new: EntryKind) -> EntryKind {
        let machine = self.frames.machine();
        let word = new.word(machine, self.level);
        // We replace it in one step: a walker may set the dirty bit between a load and a store. [mutant
        // VmReplacesInTwoSteps] Release pairs with the walkers of all CPUs: a program that reaches a page through the
        // entry finds it zeroed or filled. Lost without it: `VmMapsBeforeContent`.
        let old = self.word(page).swap(word, Ordering::Release);
        self.info.count_word(old == 0, word == 0);
        EntryKind::of(machine, old, self.level)
    }

    /// Prepares to fill the word for a page, which the caller `found` empty or not; `table` if it will link a table.
    /// The CPU that cleared the word may not have flushed it yet. So we flush the space first if no TLB may hold the
    /// old translation beside the new one (break before make): on Arm before any entry, on x86 before an entry that may
    /// be of another size. Costs two loads if no flush is outstanding.
    ///
    /// Not needed by a CPU that has cleared the word under this lock and has flushed it, nor by a CPU that rewrites a
    /// marker or a moving page's entry, because these name the flush that they wait for.
    pub(crate) fn break_before_make(&self, found: EntryKind, table: bool) {
        let machine = self.frames.machine();
        let breaks = machine.tlb_rules().break_before_make;
        let resizes = table || self.level > Level::LEAF;
        let must = breaks == Break::Translation || breaks == Break::Size && resizes;
        if must && found == EntryKind::Empty {
            let (engine, space) = (self.frames.engine(), &self.process.space);
            // [mutant VmRefillsUnflushed]
            if resizes {
                engine.flush_pending_tables(space);
            } else {
                engine.flush_pending_batches(space);
            }
        }
    }

    /// Fills a word that maps nothing, and lists the mapping. The caller passes one reference to the block, and has
    /// flushed the old translation ([`TableGuard::break_before_make`]).
    pub(crate) fn map(&self, page: Page, entry: Entry) {
        let page = self.range(page).start;
        let mut state = self.frames.state(entry.frame);
        // A marker of the same frame is listed already.
        if self.view(page) != EntryKind::Marker(entry.frame)
            || !state.rmap.contains(self.process, page)
        {
            state.rmap.add(self.process, page);
        }
        drop(state);
        self.replace(page, EntryKind::Page(entry));
    }

    /// Writes a word that names no frame, where nothing is mapped.
    pub(crate) fn put(&self, page: Page, view: EntryKind) {
        self.replace(page, view);
    }

    /// Removes the word's mapping, if it has one, and writes `rest` instead. The gather gets the mapping, with its
    /// reference; swap slots are left to the caller. Returns the old entry, with its last accessed and dirty bits.
    pub(crate) fn take(
        &self,
        page: Page,
        rest: EntryKind,
        gather: &mut MmuGather<'_, 'm, M>,
    ) -> EntryKind {
        let range = self.range(page);
        let old = self.replace(page, rest);
        self.harvest(old);
        if let Some((frame, hold)) = self.mapping(range.start, old) {
            let process = self.process.clone();
            let held = WaitingObject::Mapping { frame, process, page: range.start, hold };
            gather.unmapped(self.process, range, held);
        }
        old
    }

    /// Returns the frame that a just removed word maps or marks, and the kind of reference that keeps it.
    fn mapping(&self, page: Page, old: EntryKind) -> Option<(Frame, BlockReference)> {
        match old {
            EntryKind::Page(entry) => Some((entry.frame, BlockReference::Reference)),
            EntryKind::Moving(frame) => Some((frame, BlockReference::Reference)),
            // A marker counts while the frame lists it, because a translation may still be in use. Otherwise a reuse
            // has voided it. [mutant VmIgnoresMarker]
            EntryKind::Marker(frame) => {
                let state = self.frames.state(frame);
                let listed = state.rmap.contains(self.process, page);
                listed.then(|| (frame, BlockReference::Life(state.life)))
            }
            EntryKind::Empty | EntryKind::Table(_) | EntryKind::Swapped(_) => None,
        }
    }

    /// Records that a written page is no longer known to be zero. [mutant VmKeepsZeroFlag]
    fn harvest(&self, old: EntryKind) {
        if let EntryKind::Page(entry) = old
            && entry.dirty
        {
            self.frames.state(entry.frame).zeros = false;
        }
    }

    /// Removes a page for migration or lazily: the mapping stays listed, and `rest`, which names the frame, represents
    /// it. Calls `changed` if a flush is needed.
    pub(crate) fn suspend(
        &self,
        page: Page,
        rest: EntryKind,
        changed: impl FnOnce(PageRange),
    ) -> EntryKind {
        let range = self.range(page);
        let old = self.replace(page, rest);
        self.harvest(old);
        if self.must_flush(old, rest) {
            changed(range);
        }
        old
    }

    /// Returns whether other CPUs must flush after a change. The kernel reaches frames through its own mappings, so a
    /// page that user mode gains takes nothing from the kernel.
    fn must_flush(&self, old: EntryKind, new: EntryKind) -> bool {
        let rules = TlbRules { user_excludes_kernel: false, ..self.frames.machine().tlb_rules() };
        matches!(flush_needed(rules, &old.entry(), &new.entry()), Need::Flush(_))
    }

    /// Changes a present page's entry, whose frame stays the same, and keeps bits that the hardware sets concurrently.
    /// The gather gets a loss of rights.
    pub(crate) fn update(
        &self,
        page: Page,
        gather: Option<&mut MmuGather<'_, 'm, M>>,
        change: impl Fn(&mut Entry),
    ) {
        let machine = self.frames.machine();
        let word = self.word(page);
        // Relaxed, here and below: the kernel changes words only under the lock, and the frame, which stays, was
        // published with its content.
        let mut held = word.load(Ordering::Relaxed);
        loop {
            let EntryKind::Page(old) = EntryKind::of(machine, held, self.level) else {
                return;
            };
            let mut new = old;
            change(&mut new);
            if new == old {
                return;
            }
            let raw = machine.encode(new, self.level);
            // We exchange it, because a walker may set the dirty bit after the load. [mutant VmChangesInTwoSteps]
            match word.compare_exchange(held, raw, Ordering::Relaxed, Ordering::Relaxed) {
                Err(now) => held = now,
                Ok(_) => {
                    if !new.dirty {
                        self.harvest(EntryKind::Page(old));
                    }
                    // Rights include execution: a change that only removes that right is flushed too. [mutant
                    // VmExecutionUnflushed]
                    let lost = self.must_flush(EntryKind::Page(old), EntryKind::Page(new));
                    if let (true, Some(gather)) = (lost, gather) {
                        gather.changed(self.process, self.range(page));
                    }
                    return;
                }
            }
        }
    }

    /// Returns whether the table is a leaf table that also has the word for `page`.
    pub(crate) fn spans(&self, page: Page) -> bool {
        self.level == Level::LEAF && self.is_table_of(page)
    }

    /// Removes and returns a word that maps no frame.
    pub(crate) fn lift(&self, page: Page) -> EntryKind {
        self.replace(page, EntryKind::Empty)
    }

    /// Moves a mapping, with its reference, to an empty word. The old place stays in the reverse map until the gather
    /// has flushed it.
    pub(crate) fn move_page(
        &self,
        from: Page,
        target: &TableGuard<'_, 'm, M>,
        to: Page,
        gather: &mut MmuGather<'_, 'm, M>,
    ) {
        let EntryKind::Page(entry) = self.replace(from, EntryKind::Empty) else {
            return;
        };
        target.map(to, entry);
        let (frame, process) = (entry.frame, self.process.clone());
        // The reference moved with the mapping.
        let hold = BlockReference::Life(self.frames.state(frame).life);
        let held = WaitingObject::Mapping { frame, process, page: from, hold };
        gather.unmapped(self.process, self.range(from), held);
    }

    /// Links a table made by [`Vm::new_table`](crate::Vm::new_table) below an empty word. The caller
    /// has flushed the old translation ([`TableGuard::break_before_make`]).
    pub(crate) fn link(&self, page: Page, table: Frame) {
        let level = Level(self.level.0 - 1);
        self.frames.info(table).table_id.set(TableId::new(self.process.id, level, page));
        self.replace(page, EntryKind::Table(table));
    }

    /// Unlinks the table below the word for `page`, which this CPU has locked as `child`, and passes it to the gather.
    /// Its mappings must have been removed.
    pub(crate) fn unlink(
        &self,
        page: Page,
        child: TableGuard<'_, 'm, M>,
        gather: &mut MmuGather<'_, 'm, M>,
    ) {
        let range = self.range(page);
        let stride = child.level.size().unwrap_or(PageSize::Huge);
        child.info.table_id.set(TableId::NONE);
        self.replace(page, EntryKind::Empty);
        gather.table_unlinked(self.process, PageRange { stride, ..range }, child.frame);
    }

    /// Returns whether all words are empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.info.words_used.load(Ordering::Relaxed) == 0
    }
}
