//! Large pages: splitting one mapping into 512, and collapsing 512 into one.
//!
//! Both replace a translation by another one for the same address, so both clear, flush and only
//! then write (break before make), with the table locked meanwhile: a fault waits.

use crate::area::Source;
use crate::entry::View;
use crate::frame::{Mapping, Owner};
use crate::frames::Content;
use crate::gather::Gather;
use crate::machine::{Entry, Event, Level, Machine, TABLE_WORDS, USER_END};
use crate::process::Process;
use crate::table::Migrating;
use crate::user::Error;
use crate::vm::Vm;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quell::mutant::Mutant;
use quell::{Frame, Page, Purpose};

/// Base pages in a large page.
const LARGE: u64 = TABLE_WORDS as u64;

/// By how much the order of a block exceeds that of its 512 pieces.
const PIECE: u8 = 9;

/// How an attempt to split a page ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Split {
    Done,
    /// Other processes map the block too: what the entry says, where its page starts, the order.
    Shared(View, Page, u8),
    /// Somebody else changed the entry meanwhile, or holds the block for a moment.
    Again,
}

/// Memory for a copy of a block.
enum Copy {
    Whole(Frame),
    /// A table, and what goes into it.
    Pieces(Frame, Vec<Frame>),
}

impl<'m, M: Machine> Vm<'m, M> {
    /// Splits the pages that the edges of `start..end` cut.
    pub(crate) fn split_edges(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
    ) -> Result<(), Error> {
        self.split_at(process, start)?;
        self.split_at(process, end)
    }

    /// Makes sure that no page spans `edge` without beginning there.
    fn split_at(&self, process: &Arc<Process<M>>, edge: Page) -> Result<(), Error> {
        while !edge.0.is_multiple_of(LARGE) || !edge.0.is_multiple_of(LARGE * LARGE) {
            if edge >= USER_END {
                break;
            }
            let guard = self.governing(process, edge);
            let inside = guard.range(edge).start != edge;
            match guard.view(edge) {
                View::Page(_) if inside => {
                    drop(guard);
                    self.split(process, edge)?;
                }
                View::Moving(_) if inside => guard.await_change(edge),
                _ => break,
            }
        }
        Ok(())
    }

    /// Splits all large pages in `start..end` down to base pages.
    pub(crate) fn split_range(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        end: Page,
    ) -> Result<(), Error> {
        loop {
            let mut found = None;
            self.each_entry(process, start, end, Migrating::Wait, |guard, page, _| {
                if guard.level > Level::LEAF && found.is_none() {
                    found = Some(page);
                }
            });
            match found {
                Some(page) => self.split(process, page)?,
                None => return Ok(()),
            }
        }
    }

    /// Splits the large page around `page`, if there is one, into 512 of the next smaller size.
    /// The caller holds the areas, but neither a page lock nor a reference to the block: that would
    /// be waited for.
    pub(crate) fn split(&self, process: &Arc<Process<M>>, page: Page) -> Result<(), Error> {
        loop {
            let (block, below) = {
                let guard = self.governing(process, page);
                match guard.view(page) {
                    View::Page(entry) if guard.level > Level::LEAF => {
                        (entry.frame, Level(guard.level.0 - 1))
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

    /// Splits the page behind which `block` was seen, with `table` for its pieces.
    fn split_into(
        &self,
        process: &Arc<Process<M>>,
        page: Page,
        block: Frame,
        table: Frame,
        below: Level,
    ) -> Split {
        let machine = self.machine();
        // Reclaim and migration take references under the page lock, and everybody else who may
        // take one here under the table's: from the look at the references to the end of the block
        // nobody takes one, which would be forgotten.
        let _lock = (!machine.mutant(Mutant::VmSplitsUnlocked)).then(|| self.lock_block(block));
        let guard = self.governing(process, page);
        let seen = guard.view(page);
        let range = guard.range(page);
        if seen.frame() != Some(block) || !matches!(seen, View::Page(_)) || guard.level <= below {
            return Split::Again;
        }
        let (references, mapped, order) = {
            let state = self.frames.info(block).state(machine);
            (state.references, state.mapped(), state.order)
        };
        match (references, mapped) {
            (1, _) => {}
            (_, 2..) => return Split::Shared(seen, range.start, order),
            // A fault that copies the block holds it, or somebody whose flush is still to come.
            _ => return Split::Again,
        }
        let mut gather = Gather::new(self, Purpose::Call);
        let old = guard.suspend(page, View::Empty, |range| {
            gather.changed(process, range);
        });
        gather.flush();
        if let View::Page(entry) = old {
            self.break_block(process, range.start, entry, table, below);
        }
        guard.link(page, table);
        Split::Done
    }

    /// Makes 512 blocks of one, each mapped in `table` as the whole was by `entry`.
    fn break_block(
        &self,
        process: &Arc<Process<M>>,
        start: Page,
        entry: Entry,
        table: Frame,
        level: Level,
    ) {
        let span = level.pages();
        self.fill_table(process, start, entry, table, level, |at| {
            entry.frame.plus(at as u64 * span)
        });
    }

    /// Makes each of 512 frames a block of its own, mapped in `table` with the rights of `entry`.
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
            let mut state = self.frames.info(frame).state(machine);
            state.owner = Owner::Anonymous;
            state.order = PIECE * level.0;
            state.references = 1;
            state.zeros = false;
            state.forget_mappings();
            state.map(Mapping {
                process: process.clone(),
                page: start.plus(index as u64 * level.pages()),
            });
            drop(state);
            let raw = View::Page(Entry { frame, ..entry }).word(machine, level);
            quell::Word::store(word, raw, core::sync::atomic::Ordering::Release);
        }
        let used = &self.frames.info(table).used;
        used.store(TABLE_WORDS as u32, core::sync::atomic::Ordering::Relaxed);
    }

    /// Replaces a large page that other processes map too by a copy of this process's own, in pieces
    /// where memory for a whole one is short.
    fn unshare(
        &self,
        process: &Arc<Process<M>>,
        page: Page,
        seen: View,
        order: u8,
    ) -> Result<(), Error> {
        let View::Page(seen) = seen else {
            return Ok(());
        };
        let machine = self.machine();
        let copy = match self.allocate(order, Content::Any) {
            Some(block) => Copy::Whole(block),
            None => self.allocate_pieces(order).ok_or(Error::OutOfMemory)?,
        };
        let guard = self.governing(process, page);
        let now = match guard.view(page) {
            View::Page(now) if now.frame == seen.frame => now,
            _ => {
                drop(guard);
                self.give_back(copy);
                return Ok(());
            }
        };
        self.hold(now.frame);
        let mut gather = Gather::new(self, Purpose::Call);
        guard.take(page, View::Empty, &mut gather);
        gather.flush();
        machine.note(Event::Captured {
            frame: now.frame,
            frames: 1 << order,
        });
        // Writable only by a fault, which finds the copy to be this process's alone.
        let entry = Entry {
            writable: false,
            ..now
        };
        match copy {
            Copy::Whole(frame) => {
                machine.copy_frames(now.frame, frame, 1 << order);
                let mut state = self.frames.info(frame).state(machine);
                state.owner = Owner::Anonymous;
                state.zeros = false;
                drop(state);
                guard.map(page, Entry { frame, ..entry });
            }
            Copy::Pieces(table, pieces) => {
                let each = 1 << (order - PIECE);
                for (at, &frame) in pieces.iter().enumerate() {
                    machine.copy_frames(now.frame.plus(at as u64 * each), frame, each);
                }
                let below = Level(guard.level.0 - 1);
                self.fill_table(process, page, entry, table, below, |at| pieces[at]);
                guard.link(page, table);
            }
        }
        drop(guard);
        self.put(now.frame);
        Ok(())
    }

    /// Memory for the pieces of a block and a table for them; `None` if there is not so much.
    fn allocate_pieces(&self, order: u8) -> Option<Copy> {
        let table = self.new_table(Level((order - PIECE) / PIECE))?;
        let mut pieces = Vec::with_capacity(TABLE_WORDS);
        while pieces.len() < TABLE_WORDS {
            match self.allocate(order - PIECE, Content::Any) {
                Some(piece) => pieces.push(piece),
                None => {
                    self.give_back(Copy::Pieces(table, pieces));
                    return None;
                }
            }
        }
        Some(Copy::Pieces(table, pieces))
    }

    /// Memory for a copy that was not made.
    fn give_back(&self, copy: Copy) {
        match copy {
            Copy::Whole(block) => self.put(block),
            Copy::Pieces(table, pieces) => {
                pieces.into_iter().for_each(|piece| self.put(piece));
                self.discard_table(table);
            }
        }
    }

    /// Collapses the 2 MB around `address` into one page. Returns whether it was done: the range
    /// must lie in one anonymous area and be mapped by base pages of this process alone.
    pub(crate) fn collapse(&self, process: &Arc<Process<M>>, address: u64) -> Result<u64, Error> {
        let machine = self.machine();
        let start = Page(Page::containing(address).0 & !(LARGE - 1));
        if start >= USER_END {
            return Err(Error::BadRange);
        }
        let areas = process.areas.write(machine);
        let area = *areas.find(start).ok_or(Error::NotMapped)?;
        if !matches!(area.source, Source::Zeros(_)) || area.end < start.plus(LARGE) {
            return Ok(0);
        }
        let large = self.allocate(9, Content::Any).ok_or(Error::OutOfMemory)?;
        let parent = self.descend(process, start, Level::LARGE);
        let done = parent.level == Level::LARGE
            && matches!(parent.view(start), View::Table(_))
            && self.collapse_into(process, start, &parent, large);
        drop(parent);
        if !done {
            self.put(large);
        }
        Ok(done.into())
    }

    /// Moves the contents of 512 pages into the block `large` and maps it in their place, if all of
    /// them are eligible.
    fn collapse_into<'v>(
        &'v self,
        process: &Arc<Process<M>>,
        start: Page,
        parent: &crate::table::TableGuard<'_, 'v, 'm, M>,
        large: Frame,
    ) -> bool {
        let machine = self.machine();
        let child = self.descend(process, start, Level::LEAF);
        let mut pages: Vec<Frame> = Vec::with_capacity(TABLE_WORDS);
        for at in 0..LARGE {
            let View::Page(entry) = child.view(start.plus(at)) else {
                return false;
            };
            let state = self.frames.info(entry.frame).state(machine);
            if state.owner != Owner::Anonymous || state.references != 1 {
                return false;
            }
            pages.push(entry.frame);
        }
        let View::Page(first) = child.view(start) else {
            return false;
        };
        let copies_first = machine.mutant(Mutant::VmCollapseCopiesBeforeFlush);
        if copies_first {
            self.copy_pages(&pages, large);
        }
        let mut gather = Gather::new(self, Purpose::Call);
        for (at, &frame) in pages.iter().enumerate() {
            // The content is still needed after the flush has released the mapping.
            self.hold(frame);
            child.take(start.plus(at as u64), View::Empty, &mut gather);
        }
        parent.unlink(start, child, &mut gather);
        gather.flush();
        if !copies_first {
            self.copy_pages(&pages, large);
        }
        for &frame in &pages {
            self.put(frame);
        }
        let mut state = self.frames.info(large).state(machine);
        state.owner = Owner::Anonymous;
        state.zeros = false;
        drop(state);
        // Rights to store come back with the first store, for this block alone.
        parent.map(
            start,
            Entry {
                frame: large,
                writable: false,
                dirty: false,
                ..first
            },
        );
        true
    }

    fn copy_pages(&self, pages: &[Frame], to: Frame) {
        for (at, &frame) in pages.iter().enumerate() {
            self.machine().note(Event::Captured { frame, frames: 1 });
            self.machine().copy_frames(frame, to.plus(at as u64), 1);
        }
    }
}
