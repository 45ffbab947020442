//! Holds the frame table, the manager's record of each frame (Linux's `struct page`).
//!
//! Only the first frame of a block of `2^order` describes it. The table grows by sections of 512 frames when they are
//! first used, so unused memory costs little. A section is never freed. A CPU may lock a record long after it found the
//! frame, when the frame has a different use; it detects that under the lock ([`crate::tables`]).
//!
//! # References
//!
//! A block without references is free. There are four kinds of holders: each mapping until its flush, the page cache, a
//! swap slot that is being written, and a CPU that copies from the block. A frame with a deferred flush (S3) has no
//! references; it keeps its owner and its reverse map until it is reused.
//!
//! # The reverse map
//!
//! The reverse map (rmap) lists the page-table entries that map a frame. One rule makes every later observer correct:
//!
//! > **An entry leaves the reverse map only after the flush that its removal needed.**
//!
//! So a walk of the reverse map (by truncation, writeback, reclaim, migration) finds each mapping through which some
//! CPU may still reach the frame. The mapping is a present entry, a lazy marker, or an entry that another CPU has
//! cleared but not yet flushed. In the last case the walker flushes the space itself
//! ([`Vm::flush_pending`](crate::Vm::flush_pending)).

use crate::frames::Frames;
use crate::lock::{Guard, Lock};
use crate::machine::{Machine, MemoryMap, Node};
use crate::processes::Process;
use crate::syscall::FileId;
use crate::table_id::TableName;
use crate::table_lock::{Places, TableLock, TableLockGuard};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use once_cell::race::OnceBox;
use quell::{DeferredFlush, Frame, Page, PageSize};
use smallvec::SmallVec;

/// Frames in a section.
const SECTION: u64 = 512;

/// The use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Owner {
    /// Owned by an allocator.
    #[default]
    Free,
    /// Owned by the manager itself, for example just after allocation.
    Kernel,
    /// A page-table page.
    Table,
    /// Anonymous memory.
    Anonymous,
    /// A page of the page cache.
    File(FileId, u64),
}

/// One entry that maps a block.
pub(crate) struct Mapping<M: Machine> {
    pub(crate) process: Arc<Process<M>>,
    /// The first page that the entry maps.
    pub(crate) page: Page,
}

impl<M: Machine> Clone for Mapping<M> {
    fn clone(&self) -> Self {
        Mapping { process: self.process.clone(), page: self.page }
    }
}

impl<M: Machine> Mapping<M> {
    fn is(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.page == page && Arc::ptr_eq(&self.process, process)
    }
}

/// The mappings of a block at some moment, usually one.
pub(crate) type Mappings<M> = SmallVec<[Mapping<M>; 1]>;

/// The entries that map one block, in no particular order.
pub(crate) struct Rmap<M: Machine> {
    /// Most frames are mapped once, so the first entry needs no heap.
    first: Option<Mapping<M>>,
    more: Vec<Mapping<M>>,
}

impl<M: Machine> Rmap<M> {
    pub(crate) fn new() -> Self {
        Rmap { first: None, more: Vec::new() }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping<M>> {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn contains(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.iter().any(|mapping| mapping.is(process, page))
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(crate) fn add(&mut self, process: &Arc<Process<M>>, page: Page) {
        let mapping = Mapping { process: process.clone(), page };
        if self.first.is_none() {
            self.first = Some(mapping);
        } else {
            self.more.push(mapping);
        }
    }

    /// Removes one mapping, if it is listed. An entry that was mapped, cleared, and mapped again before its flush is
    /// listed twice.
    pub(crate) fn remove(&mut self, process: &Arc<Process<M>>, page: Page) {
        let at = |mapping: &Mapping<M>| mapping.is(process, page);
        if self.first.as_ref().is_some_and(at) {
            self.first = self.more.pop();
        } else if let Some(at) = self.more.iter().position(at) {
            self.more.swap_remove(at);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }
}

/// The part of a block's record that its lock protects.
pub(crate) struct FrameState<M: Machine> {
    pub(crate) owner: Owner,
    pub(crate) order: u8,
    pub(crate) references: u32,
    /// The block is known to contain only zeros.
    pub(crate) zeros: bool,
    /// The frame is in its node's list of stale frames.
    pub(crate) listed: bool,
    /// The number of the frame's current life. A marker is valid only in the life in which it was written.
    pub(crate) life: u64,
    pub(crate) rmap: Rmap<M>,
}

impl<M: Machine> FrameState<M> {
    fn new() -> Self {
        FrameState {
            owner: Owner::Free,
            order: 0,
            references: 0,
            zeros: false,
            listed: false,
            life: 0,
            rmap: Rmap::new(),
        }
    }

    /// Starts a new block, which is mapped nowhere.
    pub(crate) fn begin(&mut self, owner: Owner, order: u8, references: u32, zeros: bool) {
        self.owner = owner;
        self.order = order;
        self.references = references;
        self.zeros = zeros;
        self.live_anew();
    }

    /// Returns the block to an allocator, with its order and whether it contains only zeros.
    fn end(&mut self) -> (u8, bool) {
        let was = (self.order, self.zeros);
        self.owner = Owner::Free;
        self.zeros = false;
        self.live_anew();
        was
    }

    /// Starts a new life: the frame forgets the entries that map it or mapped it before.
    fn live_anew(&mut self) {
        self.life += 1;
        self.rmap.clear();
    }

    /// Changes the owner of a block whose content was written.
    pub(crate) fn set_written(&mut self, owner: Owner) {
        self.owner = owner;
        self.zeros = false;
    }

    /// Takes a reference.
    pub(crate) fn hold(&mut self) {
        self.references += 1;
    }

    /// Drops a reference. With the last one the block becomes free; then returns its order and whether it contains only
    /// zeros, for the allocator.
    pub(crate) fn put(&mut self) -> Option<(u8, bool)> {
        self.references -= 1;
        (self.references == 0).then(|| self.end())
    }

    /// Records that a stale frame was reused after its deferred flush, which makes markers that name it void.
    pub(crate) fn reused(&mut self) {
        self.owner = Owner::Free;
        self.live_anew();
    }
}

/// The manager's record of a frame.
pub(crate) struct FrameInfo<M: Machine> {
    /// The page lock of an anonymous block.
    pub(crate) page: Lock<M::Word, ()>,
    table: TableLock<M::Word>,
    /// The deferred flush of the frame, which may be empty.
    pub(crate) deferred_flush: DeferredFlush<M>,
    state: Lock<M::Word, FrameState<M>>,
    /// The table that the frame holds.
    pub(crate) table_id: TableName<M::Word>,
    /// The number of non-empty words of the table, which changes under its lock.
    pub(crate) words_used: AtomicU32,
}

/// A guard of the page lock of an anonymous block.
pub(crate) type FrameLock<'v, M> = Guard<'v, <M as quell::Hardware>::Word, ()>;

impl<M: Machine> FrameInfo<M> {
    fn new() -> Self {
        FrameInfo {
            page: Lock::new(()),
            table: TableLock::new(),
            deferred_flush: DeferredFlush::new(),
            state: Lock::new(FrameState::new()),
            table_id: TableName::new(),
            words_used: AtomicU32::new(0),
        }
    }

    /// Locks the state.
    pub(crate) fn state(&self, machine: &M) -> Guard<'_, M::Word, FrameState<M>> {
        self.state.lock(machine)
    }

    /// Locks the words of a table.
    pub(crate) fn lock_table<'l>(
        &'l self,
        machine: &'l M,
        places: &'l Places<M::Word>,
    ) -> TableLockGuard<'l, M> {
        self.table.lock(machine, places)
    }

    /// Returns whether some CPU holds the lock of the words.
    pub(crate) fn is_table_locked(&self) -> bool {
        self.table.is_held()
    }

    /// Counts a change of a word, under the table's lock.
    pub(crate) fn count_word(&self, was_empty: bool, is_empty: bool) {
        match (was_empty, is_empty) {
            (true, false) => self.words_used.fetch_add(1, Ordering::Relaxed),
            (false, true) => self.words_used.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    /// Returns the name of the word at this address, if it belongs to this record.
    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let fields = [
            (&raw const self.page as usize, size_of_val(&self.page), "page lock"),
            (&raw const self.table as usize, size_of_val(&self.table), "table lock"),
            (
                &raw const self.deferred_flush as usize,
                size_of_val(&self.deferred_flush),
                "deferred_flush",
            ),
            (&raw const self.state as usize, size_of_val(&self.state), "state lock"),
        ];
        fields
            .into_iter()
            .find(|(start, size, _)| (*start..start + size).contains(&address))
            .map(|(_, _, name)| name)
    }

    /// Returns the owner, even if some CPU holds the lock.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek_owner(&self) -> Owner {
        // SAFETY: passed on to the caller.
        unsafe { self.state.peek() }.owner
    }
}

/// Records that are made at once, when one of them is first used.
const TOGETHER: u64 = 16;

/// The records of 512 frames. A large page uses one of them.
type Section<M> = OnceBox<[OnceBox<Box<[FrameInfo<M>]>>; (SECTION / TOGETHER) as usize]>;

/// The records of each node, in node order.
pub(crate) type Sections<M> = Vec<Box<[Section<M>]>>;

/// Creates the records of all nodes, none of them used yet.
pub(crate) fn sections<M: Machine>(map: &MemoryMap) -> Sections<M> {
    let records = |node: &Node| node.extent.frames.div_ceil(SECTION);
    map.nodes().iter().map(|node| (0..records(node)).map(|_| OnceBox::new()).collect()).collect()
}

impl<M: Machine> Frames<'_, M> {
    /// Returns the record of `frame`; `None` if the manager doesn't own it.
    pub(crate) fn get(&self, frame: Frame) -> Option<&FrameInfo<M>> {
        let node = self.map.node_of(frame)?;
        let extent = self.map.nodes()[node].extent;
        let at = frame.0 - extent.first.0;
        let part = at / TOGETHER;
        let length = TOGETHER.min(extent.frames - part * TOGETHER);
        let parts = self.sections[node][(at / SECTION) as usize]
            .get_or_init(|| Box::new([const { OnceBox::new() }; (SECTION / TOGETHER) as usize]));
        let infos = parts[(at % SECTION / TOGETHER) as usize]
            .get_or_init(|| Box::new((0..length).map(|_| FrameInfo::new()).collect()));
        Some(&infos[(at % TOGETHER) as usize])
    }

    /// Returns the record of a frame that the manager owns.
    ///
    /// # Panics
    /// If a table or a list names a frame that never was in the memory map.
    pub(crate) fn info(&self, frame: Frame) -> &FrameInfo<M> {
        match self.get(frame) {
            Some(info) => info,
            None => panic!("frame {:#x} is outside the memory map", frame.0),
        }
    }

    /// Returns the frames that were ever used, for walks over all memory.
    pub(crate) fn described(&self) -> impl Iterator<Item = (Frame, &FrameInfo<M>)> {
        self.map.nodes().iter().zip(&self.sections).flat_map(|(node, sections)| {
            let first = node.extent.first.0;
            sections
                .iter()
                .enumerate()
                .filter_map(|(section, parts)| Some((section as u64 * SECTION, parts.get()?)))
                .flat_map(|(at, parts)| (at..).step_by(TOGETHER as usize).zip(parts))
                .filter_map(|(at, infos)| Some((at, infos.get()?)))
                .flat_map(move |(at, infos)| (first + at..).map(Frame).zip(infos.iter()))
        })
    }

    /// Returns the first frame after `frame`'s section, if that section was never used.
    pub(crate) fn untouched_until(&self, node: usize, frame: Frame) -> Option<Frame> {
        let first = self.map.nodes()[node].extent.first.0;
        let section = (frame.0 - first) / SECTION;
        match self.sections[node][section as usize].get() {
            None => Some(Frame(first + (section + 1) * SECTION)),
            Some(_) => None,
        }
    }
}

/// Returns the order of the block for a page of this size.
pub(crate) const fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Base => 0,
        PageSize::Large => 9,
        PageSize::Huge => 18,
    }
}

/// Returns the size of the page that maps a block of this order.
pub(crate) const fn size_of(order: u8) -> PageSize {
    match order {
        18.. => PageSize::Huge,
        9..=17 => PageSize::Large,
        _ => PageSize::Base,
    }
}
