//! Splits one large mapping into 512, and collapses 512 into one.
//!
//! Both replace a translation for an address by another one. So both clear, flush, and only then write (break before
//! make). The table stays locked, and faults wait.

use crate::entry::EntryKind;
use crate::frame::Owner;
use crate::frames::Content;
use crate::machine::{Entry, Event, Level, Machine, TABLE_WORDS, USER_END};
use crate::processes::Process;
use crate::syscall::Error;
use crate::table::TableGuard;
use crate::tables::MigrationHandling;
use crate::vm::Vm;
use crate::vma::Source;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use quell::{Frame, Page, PageRange, Purpose, Word};

/// Base pages in a large page.
const LARGE: u64 = TABLE_WORDS as u64;

/// The difference in order between a block and its 512 pieces.
const PIECE: u8 = 9;

/// The result of an attempt to split a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    Done,
    /// Other processes also map the block: its entry, the first page, and the order.
    Shared(EntryKind, Page, u8),
    /// Another CPU changed the entry in the meantime, or holds the block for a moment.
    Again,
}

/// Memory for a copy of a block.
enum Copy {
    Whole(Frame),
    /// A table, and the pieces that it will map.
    Pieces(Frame, Vec<Frame>),
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Splits the pages that the edges of the range cut.
    pub(crate) fn split_edges(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
    ) -> Result<(), Error> {
        self.split_at(process, range.start)?;
        self.split_at(process, range.end())
    }

    /// Splits until no page contains `edge` without beginning there.
    fn split_at(&self, process: &Arc<Process<M>>, edge: Page) -> Result<(), Error> {
        while !edge.0.is_multiple_of(LARGE) || !edge.0.is_multiple_of(LARGE * LARGE) {
            if edge >= USER_END {
                break;
            }
            let guard = self.governing(process, edge);
            let inside = guard.range(edge).start != edge;
            match guard.view(edge) {
                EntryKind::Page(_) if inside => {
                    drop(guard);
                    self.split(process, edge)?;
                }
                EntryKind::Moving(_) if inside => guard.await_change(edge),
                _ => break,
            }
        }
        Ok(())
    }

    /// Splits all large pages in the range down to base pages.
    pub(crate) fn split_range(
        &self,
        process: &Arc<Process<M>>,
        range: PageRange,
    ) -> Result<(), Error> {
        loop {
            let mut found = None;
            self.each_entry(process, range, MigrationHandling::Wait, |guard, page, _| {
                if guard.level() > Level::LEAF && found.is_none() {
                    found = Some(page);
                }
            });
            match found {
                Some(page) => self.split(process, page)?,
                None => return Ok(()),
            }
        }
    }

    /// Splits the large page around `page`, if there is one, into 512 of the next smaller size. The caller holds the
    /// areas, but no page lock and no reference to the block: the split would wait for it.
    pub(crate) fn split(&self, process: &Arc<Process<M>>, page: Page) -> Result<(), Error> {
        loop {
            let (block, below) = {
                let guard = self.governing(process, page);
                match guard.view(page) {
                    EntryKind::Page(entry) if guard.level() > Level::LEAF => {
                        (entry.frame, Level(guard.level().0 - 1))
                    }
                    _ => return Ok(()),
                }
            };
            let table = self.new_table(below).ok_or(Error::OutOfMemory)?;
            let split = self.split_into(process, page, block, table, below);
            if split == Split::Done {
                return Ok(());
            }
            self.discard_table(table);
            match split {
                Split::Shared(seen, start, order) => self.unshare(process, start, seen, order)?,
                _ => self.machine().relax(),
            }
        }
    }

    /// Splits the page that maps `block`, and uses `table` for its pieces.
    fn split_into(
        &self,
        process: &Arc<Process<M>>,
        page: Page,
        block: Frame,
        table: Frame,
        below: Level,
    ) -> Split {
        // Reclaim and migration take references under the page lock; every other CPU takes one under the table's lock.
        // We hold both, so nobody can take a reference between the check below and the end of this block, to a block
        // that is no longer whole. [mutant VmSplitsUnlocked]
        let _lock = self.lock_block(block);
        let guard = self.governing(process, page);
        let seen = guard.view(page);
        let range = guard.range(page);
        if seen.frame() != Some(block)
            || !matches!(seen, EntryKind::Page(_))
            || guard.level() <= below
        {
            return Split::Again;
        }
        let (references, mapped, order) = {
            let state = self.frames.state(block);
            (state.references, state.rmap.len(), state.order)
        };
        match (references, mapped) {
            (1, _) => {}
            (_, 2..) => return Split::Shared(seen, range.start, order),
            // A fault that copies the block holds it, or a gather that isn't flushed yet.
            _ => return Split::Again,
        }
        let mut gather = self.gather(Purpose::Call);
        let old = guard.suspend(page, EntryKind::Empty, |range| {
            gather.cleared(process, range);
        });
        // We flush before we link the table: a TLB may not hold the large page beside its pieces (break before make).
        // [mutant VmLinksBeforeFlush]
        gather.flush();
        if let EntryKind::Page(entry) = old {
            let piece = |at| entry.frame.plus(at as u64 * below.pages());
            self.fill_table(process, range.start, entry, table, below, piece);
        }
        guard.link(page, table);
        Split::Done
    }

    /// Makes each of 512 frames its own block, mapped in `table` with the rights of `entry`.
    fn fill_table(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        entry: Entry,
        table: Frame,
        level: Level,
        piece: impl Fn(usize) -> Frame,
    ) {
        let machine = self.machine();
        for (index, word) in machine.table(table).iter().enumerate() {
            let frame = piece(index);
            let mut state = self.frames.state(frame);
            // `false`: we don't know whether a piece is zero. [mutant VmPiecesAreZero]
            state.begin(Owner::Anonymous, PIECE * level.0, 1, false);
            state.rmap.add(process, start.plus(index as u64 * level.pages()));
            drop(state);
            let raw = EntryKind::Page(Entry { frame, ..entry }).word(machine, level);
            // Relaxed: the table is linked later.
            word.store(raw, Ordering::Relaxed);
        }
        self.frames.info(table).words_used.store(TABLE_WORDS as u32, Ordering::Relaxed);
    }

    /// Replaces a large page that other processes map too by a private copy, in pieces if there is no memory for a
    /// whole one.
    fn unshare(
        &self,
        process: &Arc<Process<M>>,
        page: Page,
        seen: EntryKind,
        order: u8,
    ) -> Result<(), Error> {
        let EntryKind::Page(seen) = seen else {
            return Ok(());
        };
        let machine = self.machine();
        let copy = match self.alloc(order, Content::Any) {
            Some(block) => Copy::Whole(block),
            None => self.alloc_pieces(order).ok_or(Error::OutOfMemory)?,
        };
        let guard = self.governing(process, page);
        // Another CPU may have become the only user and split the page. Its first piece is in the same frame. [mutant
        // VmUnsharesPiece]
        let is_block = guard.range(page).pages == 1 << order;
        let now = match guard.view(page) {
            EntryKind::Page(now) if now.frame == seen.frame && is_block => now,
            _ => {
                drop(guard);
                self.free_copy(copy);
                return Ok(());
            }
        };
        self.frames.hold(now.frame);
        let mut gather = self.gather(Purpose::Call);
        guard.take(page, EntryKind::Empty, &mut gather);
        gather.flush();
        machine.note(Event::Captured { frame: now.frame, frames: 1 << order });
        // Only a fault makes it writable, when it finds that the copy belongs to this process alone.
        let entry = Entry { writable: false, ..now };
        match copy {
            Copy::Whole(frame) => {
                machine.copy_frames(now.frame, frame, 1 << order);
                self.frames.state(frame).set_written(Owner::Anonymous);
                guard.map(page, Entry { frame, ..entry });
            }
            Copy::Pieces(table, pieces) => {
                let each = 1 << (order - PIECE);
                for (at, &frame) in pieces.iter().enumerate() {
                    machine.copy_frames(now.frame.plus(at as u64 * each), frame, each);
                }
                let below = Level(guard.level().0 - 1);
                self.fill_table(process, page, entry, table, below, |at| pieces[at]);
                guard.link(page, table);
            }
        }
        drop(guard);
        self.frames.put(now.frame);
        Ok(())
    }

    /// Allocates the pieces of a block and a table for them; `None` if memory is short.
    fn alloc_pieces(&self, order: u8) -> Option<Copy> {
        let table = self.new_table(Level((order - PIECE) / PIECE))?;
        let mut pieces = Vec::with_capacity(TABLE_WORDS);
        while pieces.len() < TABLE_WORDS {
            match self.alloc(order - PIECE, Content::Any) {
                Some(piece) => pieces.push(piece),
                None => {
                    self.free_copy(Copy::Pieces(table, pieces));
                    return None;
                }
            }
        }
        Some(Copy::Pieces(table, pieces))
    }

    /// Frees the memory of a copy that wasn't made.
    fn free_copy(&self, copy: Copy) {
        match copy {
            Copy::Whole(block) => self.frames.put(block),
            Copy::Pieces(table, pieces) => {
                pieces.into_iter().for_each(|piece| self.frames.put(piece));
                self.discard_table(table);
            }
        }
    }

    /// Collapses the 2 MB around `address` into one page. Returns whether it succeeded. The range must be in one
    /// anonymous area and mapped by base pages of this process alone.
    pub(crate) fn collapse(&self, process: &Arc<Process<M>>, address: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let start = Page(Page::containing(address).0 & !(LARGE - 1));
        if start >= USER_END {
            return Err(Error::BadRange);
        }
        let vmas = process.vmas.write(machine);
        let vma = *vmas.find(start).ok_or(Error::NotMapped)?;
        if !matches!(vma.source, Source::Anonymous(_)) || vma.end < start.plus(LARGE) {
            return Ok(0);
        }
        let large = self.alloc(9, Content::Any).ok_or(Error::OutOfMemory)?;
        let parent = self.descend(process, start, Level::LARGE);
        let done = parent.level() == Level::LARGE
            && matches!(parent.view(start), EntryKind::Table(_))
            && self.collapse_into(process, start, &parent, large);
        drop(parent);
        if !done {
            self.frames.put(large);
        }
        Ok(done.into())
    }

    /// Copies 512 pages into the block `large` and maps it instead of them, if all are eligible.
    fn collapse_into(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        parent: &TableGuard<'_, 'm, M>,
        large: Frame,
    ) -> bool {
        let child = self.descend(process, start, Level::LEAF);
        let mut pages: Vec<Frame> = Vec::with_capacity(TABLE_WORDS);
        for at in 0..LARGE {
            let EntryKind::Page(entry) = child.view(start.plus(at)) else {
                return false;
            };
            let state = self.frames.state(entry.frame);
            if state.owner != Owner::Anonymous || state.references != 1 {
                return false;
            }
            pages.push(entry.frame);
        }
        let EntryKind::Page(first) = child.view(start) else {
            return false;
        };
        let mut gather = self.gather(Purpose::Call);
        for (at, &frame) in pages.iter().enumerate() {
            // Keep the frame: its content is still needed after the flush has released the mapping.
            self.frames.hold(frame);
            child.take(start.plus(at as u64), EntryKind::Empty, &mut gather);
        }
        parent.unlink(start, child, &mut gather);
        // We clear and flush, then copy: before the flush, a CPU may still write the small pages. [mutant
        // VmCollapseCopiesBeforeFlush]
        gather.flush();
        self.copy_pages(&pages, large);
        for &frame in &pages {
            self.frames.put(frame);
        }
        self.frames.state(large).set_written(Owner::Anonymous);
        // The first store restores the right to store, for the new block alone.
        parent.map(start, Entry { frame: large, writable: false, dirty: false, ..first });
        true
    }

    fn copy_pages(&self, pages: &[Frame], to: Frame) {
        for (at, &frame) in pages.iter().enumerate() {
            self.machine().note(Event::Captured { frame, frames: 1 });
            self.machine().copy_frames(frame, to.plus(at as u64), 1);
        }
    }
}
