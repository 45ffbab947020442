//! The frame table: what the manager knows about each frame (Linux's `struct page`).
//!
//! A block of `2^order` frames is described by its first frame alone. The table is made in sections
//! of 512 frames as they are first used, so a machine with much memory costs little until then,
//! and a section never goes away: a CPU may take a lock in it long after it looked the frame up, when
//! the frame has become something else, and finds that out under the lock ([`crate::tables`]).
//!
//! # References
//!
//! A block without references is free. Each mapping holds a reference until its flush, the page cache
//! holds one, a swap slot that is being written holds one, and so does a CPU that copies from it. A
//! frame whose flush is deferred (S3) has no references and keeps its owner and its reverse map until it
//! is reused.

use crate::lock::{Guard, Lock, RawGuard, RawLock};
use crate::machine::{Machine, MemoryMap};
use crate::process::Process;
use crate::rmap::{Mappings, Rmap};
use crate::syscall::FileId;
use crate::table_id::{TableId, TableName};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use once_cell::race::OnceBox;
use quell::{DeferredFlush, Frame, Page, PageSize};

/// Frames that are described together.
const SECTION: u64 = 512;

/// The use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Owner {
    /// Owned by an allocator.
    #[default]
    Free,
    /// The manager itself, for a moment: allocated and not yet anything else.
    Kernel,
    /// A page-table page.
    Table,
    /// Anonymous memory.
    Anonymous,
    /// A page of the page cache.
    File(FileId, u64),
}

/// The state under a block's lock.
pub(crate) struct FrameState<M: Machine> {
    owner: Owner,
    order: u8,
    references: u32,
    zeros: bool,
    listed: bool,
    /// The number of the frame's life: a marker belongs to one life, and has no meaning in another.
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

    /// The frame becomes a block of its own, mapped nowhere.
    pub(crate) fn begin(&mut self, owner: Owner, order: u8, references: u32, zeros: bool) {
        self.owner = owner;
        self.order = order;
        self.references = references;
        self.zeros = zeros;
        self.live_anew();
    }

    /// Returns the block to an allocator; returns its order and whether it contains zeros.
    fn end(&mut self) -> (u8, bool) {
        let was = (self.order, self.zeros);
        self.owner = Owner::Free;
        self.zeros = false;
        self.live_anew();
        was
    }

    /// No entry maps it, nor does one that mapped it before.
    fn live_anew(&mut self) {
        self.life += 1;
        self.rmap.clear();
    }

    /// Which of its lives this is.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// The block changes hands, its content unread.
    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.owner = owner;
    }

    /// As [`FrameState::set_owner`], for a block that was written.
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

    /// Sets the references of a stale frame: none as its flush begins to be deferred, one as it is
    /// reinstated.
    pub(crate) fn set_references(&mut self, references: u32) {
        self.references = references;
    }

    /// Gives a reference up; with the last one the block is free, and its order and whether it holds
    /// zeros are returned for the allocator.
    pub(crate) fn put(&mut self) -> Option<(u8, bool)> {
        self.references -= 1;
        (self.references == 0).then(|| self.end())
    }

    /// A stale frame was reused: its deferred flush was made, so markers that name it are void.
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

    /// How many entries the reverse map lists.
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

    /// Removes an entry from the reverse map: after its flush.
    pub(crate) fn unmap(&mut self, process: &Arc<Process<M>>, page: Page) {
        self.rmap.remove(process, page);
    }

    /// The entries that the reverse map lists now.
    pub(crate) fn mappings(&self) -> Mappings<M> {
        self.rmap.iter().cloned().collect()
    }
}

/// The manager's knowledge of a frame.
pub(crate) struct FrameInfo<M: Machine> {
    page: RawLock<M::Word>,
    table: RawLock<M::Word>,
    deferred_flush: DeferredFlush<M>,
    state: Lock<M::Word, FrameState<M>>,
    table_name: TableName<M::Word>,
    used: AtomicU32,
}

/// Possession of the page lock of an anonymous block, or of the lock of a table's words.
pub(crate) type FrameLock<'v, M> = RawGuard<'v, <M as quell::Hardware>::Word>;

impl<M: Machine> FrameInfo<M> {
    fn new() -> Self {
        FrameInfo {
            page: RawLock::new(),
            table: RawLock::new(),
            deferred_flush: DeferredFlush::new(),
            state: Lock::new(FrameState::new()),
            table_name: TableName::new(),
            used: AtomicU32::new(0),
        }
    }

    /// Waits for the state.
    pub(crate) fn state(&self, machine: &M) -> Guard<'_, M::Word, FrameState<M>> {
        self.state.lock(machine)
    }

    /// The deferred flush of the frame: whether a flush of it is deferred.
    pub(crate) fn deferred_flush(&self) -> &DeferredFlush<M> {
        &self.deferred_flush
    }

    /// Waits for the page lock of an anonymous block.
    pub(crate) fn lock_page(&self, machine: &M) -> FrameLock<'_, M> {
        self.page.lock(machine)
    }

    /// Takes the page lock of an anonymous block if no CPU holds it.
    pub(crate) fn try_lock_page(&self) -> Option<FrameLock<'_, M>> {
        self.page.try_lock()
    }

    /// Waits for the lock of the words, if the frame is a table.
    pub(crate) fn lock_table(&self, machine: &M) -> FrameLock<'_, M> {
        self.table.lock(machine)
    }

    /// Returns whether some CPU holds the lock of the words.
    pub(crate) fn is_table_locked(&self) -> bool {
        self.table.is_held()
    }

    pub(crate) fn table_id(&self) -> TableId {
        self.table_name.get()
    }

    /// Sets the table that the frame is from now on.
    pub(crate) fn set_table_id(&self, id: TableId) {
        self.table_name.set(id);
    }

    /// How many words of the table are not empty.
    pub(crate) fn words_used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Sets how many words of a table are not empty, before it is linked.
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

    /// The name of the word at this address, if it is one of the frame's.
    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let fields = [
            (
                &raw const self.page as usize,
                size_of_val(&self.page),
                "page lock",
            ),
            (
                &raw const self.table as usize,
                size_of_val(&self.table),
                "table lock",
            ),
            (
                &raw const self.deferred_flush as usize,
                size_of_val(&self.deferred_flush),
                "deferred_flush",
            ),
            (
                &raw const self.state as usize,
                size_of_val(&self.state),
                "state lock",
            ),
        ];
        fields
            .into_iter()
            .find(|(start, size, _)| (*start..start + size).contains(&address))
            .map(|(_, _, name)| name)
    }

    /// The owner, even if some CPU holds the lock.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek_owner(&self) -> Owner {
        // SAFETY: passed on to the caller.
        unsafe { self.state.peek() }.owner
    }
}
/// The descriptions of 512 frames, made at the first use of one.
type Section<M> = OnceBox<Box<[FrameInfo<M>]>>;

/// The frames of all nodes.
pub(crate) struct FrameTable<M: Machine> {
    map: MemoryMap,
    nodes: Vec<Box<[Section<M>]>>,
}

impl<M: Machine> FrameTable<M> {
    pub(crate) fn new(map: MemoryMap) -> Self {
        let nodes = map
            .nodes()
            .iter()
            .map(|node| {
                (0..node.extent.frames.div_ceil(SECTION))
                    .map(|_| OnceBox::new())
                    .collect()
            })
            .collect();
        FrameTable { map, nodes }
    }

    pub(crate) fn map(&self) -> &MemoryMap {
        &self.map
    }

    /// Returns the description of `frame`; `None` if the manager does not own it.
    pub(crate) fn get(&self, frame: Frame) -> Option<&FrameInfo<M>> {
        let node = self.map.node_of(frame)?;
        let extent = self.map.nodes()[node].extent;
        let at = frame.0 - extent.first.0;
        let section = at / SECTION;
        let length = SECTION.min(extent.frames - section * SECTION);
        let infos = self.nodes[node][section as usize]
            .get_or_init(|| Box::new((0..length).map(|_| FrameInfo::new()).collect()));
        Some(&infos[(at % SECTION) as usize])
    }

    /// Returns the description of a frame that the manager owns.
    ///
    /// # Panics
    /// If it does not: a table or a list names a frame that never was in the memory map.
    pub(crate) fn info(&self, frame: Frame) -> &FrameInfo<M> {
        match self.get(frame) {
            Some(info) => info,
            None => panic!("frame {:#x} is outside the memory map", frame.0),
        }
    }

    /// The frames whose description exists, for walks over all memory: with gaps of whole sections.
    pub(crate) fn described(&self) -> impl Iterator<Item = (Frame, &FrameInfo<M>)> {
        self.map
            .nodes()
            .iter()
            .zip(&self.nodes)
            .flat_map(|(node, sections)| {
                let first = node.extent.first.0;
                sections
                    .iter()
                    .enumerate()
                    .filter_map(|(s, infos)| Some((s, infos.get()?)))
                    .flat_map(move |(s, infos)| {
                        infos.iter().enumerate().map(move |(at, info)| {
                            (Frame(first + s as u64 * SECTION + at as u64), info)
                        })
                    })
            })
    }

    /// Returns whether the section of `frame` was never used, and the first frame after it.
    pub(crate) fn untouched_until(&self, node: usize, frame: Frame) -> Option<Frame> {
        let first = self.map.nodes()[node].extent.first.0;
        let section = (frame.0 - first) / SECTION;
        match self.nodes[node][section as usize].get() {
            None => Some(Frame(first + (section + 1) * SECTION)),
            Some(_) => None,
        }
    }
}

/// The order of the block behind a page.
pub(crate) const fn order_of(size: PageSize) -> u8 {
    match size {
        PageSize::Base => 0,
        PageSize::Large => 9,
        PageSize::Huge => 18,
    }
}

/// The size of the page that a block of this order is mapped by.
pub(crate) const fn size_of(order: u8) -> PageSize {
    match order {
        18.. => PageSize::Huge,
        9..=17 => PageSize::Large,
        _ => PageSize::Base,
    }
}
