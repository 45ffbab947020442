//! What the manager knows about each frame: its owner, who refers to it and where it is mapped.
//!
//! A block of `2^order` frames is described by its first frame alone. The table is made in sections
//! of 512 frames as they are first used, so a machine with much memory costs little until then,
//! and a section never goes away: a lock in it may be taken by somebody who looked the frame up
//! when it was something else, and who then finds out under the lock ([`crate::table`]).
//!
//! # The reverse map
//!
//! Each block lists the entries that map it. One rule keeps every second actor honest:
//!
//! > **An entry leaves the reverse map only after the flush that its removal needed.**
//!
//! So who walks the reverse map (truncation, writeback, reclaim, migration) meets each mapping
//! through which some CPU may still reach the frame: as a present entry, as a lazy marker, or as
//! an entry that somebody else has cleared and not yet flushed, whose space it then settles.
//!
//! # References
//!
//! A block is free when nobody refers to it. Each mapping holds a reference until its flush, the
//! page cache holds one, a swap slot that is being written holds one, and so does whoever copies
//! from it. A frame whose flush is owed (S3) has no references and keeps its owner and its reverse
//! map until it is claimed.

use crate::lock::{Guard, Lock, RawLock};
use crate::machine::{Level, Machine, MemoryMap};
use crate::process::Process;
use crate::shared::Shared;
use crate::user::FileId;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use once_cell::race::OnceBox;
use quell::{Frame, Page, PageSize, Residue};
use smallvec::SmallVec;

/// Frames that are described together.
const SECTION: u64 = 512;

/// Who owns a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Owner {
    /// An allocator.
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

/// One entry that maps a block.
pub(crate) struct Mapping<M: Machine> {
    pub(crate) process: Arc<Process<M>>,
    pub(crate) page: Page,
}

impl<M: Machine> Clone for Mapping<M> {
    fn clone(&self) -> Self {
        Mapping {
            process: self.process.clone(),
            page: self.page,
        }
    }
}

impl<M: Machine> Mapping<M> {
    pub(crate) fn is(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.page == page && Arc::ptr_eq(&self.process, process)
    }
}

/// The mappings of a frame at some moment, mostly one.
pub(crate) type Mappings<M> = SmallVec<[Mapping<M>; 1]>;

/// What changes under the lock of a block's state.
pub(crate) struct FrameState<M: Machine> {
    pub(crate) owner: Owner,
    pub(crate) order: u8,
    pub(crate) references: u32,
    /// Nothing but zeros was ever in the block, unless an entry that maps it is dirty now.
    pub(crate) zeros: bool,
    /// The frame is in its node's list of stale frames.
    pub(crate) listed: bool,
    /// Most frames are mapped once: the first entry needs no heap.
    first: Option<Mapping<M>>,
    more: Vec<Mapping<M>>,
}

impl<M: Machine> FrameState<M> {
    fn new() -> Self {
        FrameState {
            owner: Owner::Free,
            order: 0,
            references: 0,
            zeros: false,
            listed: false,
            first: None,
            more: Vec::new(),
        }
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = &Mapping<M>> {
        self.first.iter().chain(&self.more)
    }

    pub(crate) fn maps(&self, process: &Arc<Process<M>>, page: Page) -> bool {
        self.mappings().any(|mapping| mapping.is(process, page))
    }

    pub(crate) fn mapped(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    pub(crate) fn map(&mut self, mapping: Mapping<M>) {
        if self.first.is_none() {
            self.first = Some(mapping);
        } else {
            self.more.push(mapping);
        }
    }

    /// Removes one mapping; entries that were mapped, cleared and mapped again before the flush
    /// are there twice.
    pub(crate) fn unmap(&mut self, process: &Arc<Process<M>>, page: Page) {
        if self
            .first
            .as_ref()
            .is_some_and(|mapping| mapping.is(process, page))
        {
            self.first = self.more.pop();
        } else if let Some(at) = self
            .more
            .iter()
            .position(|mapping| mapping.is(process, page))
        {
            self.more.swap_remove(at);
        }
    }

    pub(crate) fn forget_mappings(&mut self) {
        self.first = None;
        self.more.clear();
    }
}

/// Which table a page-table page is: space, level and the first page it translates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TableId(u64);

impl TableId {
    pub(crate) const NONE: TableId = TableId(0);

    /// `process` is a number that no other living process has.
    pub(crate) fn new(process: u32, level: Level, page: Page) -> Self {
        let base = level.base(page).0 >> 9;
        TableId(1 << 63 | u64::from(level.0) << 60 | base << 32 | u64::from(process))
    }
}

/// What is known about a frame.
pub(crate) struct FrameInfo<M: Machine> {
    /// The page lock of an anonymous block.
    pub(crate) page: RawLock<M::Word>,
    /// The lock of the words, if the frame is a table.
    pub(crate) table: RawLock<M::Word>,
    /// What the flush of the frame owes.
    pub(crate) residue: Residue<M>,
    state: Lock<M::Word, FrameState<M>>,
    table_id: Shared<M::Word>,
    /// How many words of a table are not empty. Changes under its lock.
    pub(crate) used: AtomicU32,
}

impl<M: Machine> FrameInfo<M> {
    fn new() -> Self {
        FrameInfo {
            page: RawLock::new(),
            table: RawLock::new(),
            residue: Residue::new(),
            state: Lock::new(FrameState::new()),
            table_id: Shared::new(0),
            used: AtomicU32::new(0),
        }
    }

    pub(crate) fn state(&self, machine: &M) -> Guard<'_, M::Word, FrameState<M>> {
        self.state.lock(machine)
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
                &raw const self.residue as usize,
                size_of_val(&self.residue),
                "residue",
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

    /// The owner, whoever holds the lock.
    ///
    /// # Safety
    /// As for [`Lock::peek`].
    pub(crate) unsafe fn peek(&self) -> Owner {
        // SAFETY: passed on to the caller.
        unsafe { self.state.peek() }.owner
    }

    pub(crate) fn table_id(&self) -> TableId {
        // Acquire: pairs with `set_table_id`; the words of the table are seen as prepared.
        TableId(self.table_id.load(Ordering::Acquire))
    }

    pub(crate) fn set_table_id(&self, id: TableId) {
        self.table_id.store(id.0, Ordering::Release);
    }
}

/// The descriptions of 512 frames, made when the first is asked for.
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

    /// What is known about `frame`; `None` if the manager does not own it.
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

    /// What is known about a frame that the manager owns.
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

    /// Whether the section of `frame` was never used, and the first frame after it.
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
