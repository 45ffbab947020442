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

use crate::lock::{Guard, Lock, RawGuard, RawLock};
use crate::machine::{Machine, MemoryMap};
use crate::process::Process;
use crate::rmap::{Mappings, Rmap};
use crate::syscall::FileId;
use crate::table_id::{TableId, TableName};
use crate::table_lock::{Places, TableLock, TableLockGuard};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use once_cell::race::OnceBox;
use quell::{DeferredFlush, Frame, Page, PageSize};

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

/// The part of a block's record that its lock protects.
pub(crate) struct FrameState<M: Machine> {
    owner: Owner,
    order: u8,
    references: u32,
    zeros: bool,
    listed: bool,
    /// The number of the frame's current life. A marker is valid only in the life in which it was written.
    life: u64,
    rmap: Rmap<M>,
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

    /// Returns the number of the current life.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Changes the owner without touching the content.
    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// Changes the owner of a block whose content was written.
    pub(crate) fn set_written(&mut self, owner: Owner) {
        self.owner = owner;
        self.zeros = false;
    }

    /// Forgets that the block contains only zeros.
    pub(crate) fn forget_zeros(&mut self) {
        self.zeros = false;
    }

    pub(crate) fn order(&self) -> u8 {
        self.order
    }

    pub(crate) fn references(&self) -> u32 {
        self.references
    }

    /// Takes a reference.
    pub(crate) fn hold(&mut self) {
        self.references += 1;
    }

    /// Sets the references of a stale frame: 0 when its flush is deferred, 1 when it is reinstated.
    pub(crate) fn set_references(&mut self, references: u32) {
        self.references = references;
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

    /// Returns whether the frame is in its node's list of stale frames.
    pub(crate) fn is_listed(&self) -> bool {
        self.listed
    }

    pub(crate) fn set_listed(&mut self, listed: bool) {
        self.listed = listed;
    }

    /// Returns the number of entries in the reverse map.
    pub(crate) fn mapped(&self) -> usize {
        self.rmap.len()
    }

    /// Returns whether the reverse map lists the entry of `process` for `page`.
    pub(crate) fn maps(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.rmap.contains(process, page)
    }

    /// Lists an entry in the reverse map.
    pub(crate) fn map(&mut self, process: &Arc<Process<M>>, page: Page) {
        self.rmap.add(process, page);
    }

    /// Removes an entry from the reverse map. Call it only after the entry's flush.
    pub(crate) fn unmap(&mut self, process: &Arc<Process<M>>, page: Page) {
        self.rmap.remove(process, page);
    }

    /// Returns the entries that the reverse map lists now.
    pub(crate) fn mappings(&self) -> Mappings<M> {
        self.rmap.iter().cloned().collect()
    }
}

/// The manager's record of a frame.
pub(crate) struct FrameInfo<M: Machine> {
    page: RawLock<M::Word>,
    table: TableLock<M::Word>,
    deferred_flush: DeferredFlush<M>,
    state: Lock<M::Word, FrameState<M>>,
    table_name: TableName<M::Word>,
    used: AtomicU32,
}

/// A guard of the page lock of an anonymous block.
pub(crate) type FrameLock<'v, M> = RawGuard<'v, <M as quell::Hardware>::Word>;

impl<M: Machine> FrameInfo<M> {
    fn new() -> Self {
        FrameInfo {
            page: RawLock::new(),
            table: TableLock::new(),
            deferred_flush: DeferredFlush::new(),
            state: Lock::new(FrameState::new()),
            table_name: TableName::new(),
            used: AtomicU32::new(0),
        }
    }

    /// Locks the state.
    pub(crate) fn state(&self, machine: &M) -> Guard<'_, M::Word, FrameState<M>> {
        self.state.lock(machine)
    }

    /// Returns the deferred flush of the frame, which may be empty.
    pub(crate) fn deferred_flush(&self) -> &DeferredFlush<M> {
        &self.deferred_flush
    }

    /// Locks the page of an anonymous block.
    pub(crate) fn lock_page(&self, machine: &M) -> FrameLock<'_, M> {
        self.page.lock(machine)
    }

    /// Locks the page of an anonymous block if no CPU holds the lock.
    pub(crate) fn try_lock_page(&self) -> Option<FrameLock<'_, M>> {
        self.page.try_lock()
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

    pub(crate) fn table_id(&self) -> TableId {
        self.table_name.get()
    }

    /// Sets the table that this frame holds from now on.
    pub(crate) fn set_table_id(&self, id: TableId) {
        self.table_name.set(id);
    }

    /// Returns the number of non-empty words of the table.
    pub(crate) fn words_used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets the number of non-empty words of a table that isn't linked yet.
    pub(crate) fn set_words_used(&self, used: u32) {
        self.used.store(used, Ordering::Relaxed);
    }

    /// Counts a change of a word, under the table's lock.
    pub(crate) fn count_word(&self, was_empty: bool, is_empty: bool) {
        match (was_empty, is_empty) {
            (true, false) => self.used.fetch_add(1, Ordering::Relaxed),
            (false, true) => self.used.fetch_sub(1, Ordering::Relaxed),
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

/// The records of all nodes.
pub(crate) struct FrameTable<M: Machine> {
    map: MemoryMap,
    nodes: Vec<Box<[Section<M>]>>,
}

impl<M: Machine> FrameTable<M> {
    pub(crate) fn new(map: MemoryMap) -> Self {
        let nodes = map
            .nodes()
            .iter()
            .map(|node| (0..node.extent.frames.div_ceil(SECTION)).map(|_| OnceBox::new()).collect())
            .collect();
        FrameTable { map, nodes }
    }

    pub(crate) fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// Returns the record of `frame`; `None` if the manager doesn't own it.
    pub(crate) fn get(&self, frame: Frame) -> Option<&FrameInfo<M>> {
        let node = self.map.node_of(frame)?;
        let extent = self.map.nodes()[node].extent;
        let at = frame.0 - extent.first.0;
        let part = at / TOGETHER;
        let length = TOGETHER.min(extent.frames - part * TOGETHER);
        let parts = self.nodes[node][(at / SECTION) as usize]
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

    /// Returns the frames with a record, for walks over all memory.
    pub(crate) fn described(&self) -> impl Iterator<Item = (Frame, &FrameInfo<M>)> {
        self.map.nodes().iter().zip(&self.nodes).flat_map(|(node, sections)| {
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
        match self.nodes[node][section as usize].get() {
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
