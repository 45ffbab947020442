//! Defines what a machine provides to the memory manager, beyond the engine's needs.
//!
//! [`Machine`] extends [`Hardware`] and [`PhysicalMemory`] with physical memory: its location, the encoding of
//! page-table entries, and the kernel's access to words of a table and bytes of a frame. Our kernel implements
//! [`Machine`] with its direct map, and does nothing in [`Machine::charge`] and [`Machine::note`]. The machines in
//! software charge virtual time there and inform their oracles.
//!
//! # Page tables
//!
//! There are four levels of 512 words, from [`Level::ROOT`] down to [`Level::LEAF`]. A non-present entry has bit 0
//! clear on every supported machine. Its other 63 bits belong to the manager, which names a swap slot or a frame there;
//! the machine never encodes them.
//!
//! Hardware walkers read the table words, and may write them if [`Machine::hardware_dirty`] is set: they set `accessed`
//! and `dirty` at any time. The manager uses the first 256 words of a root. The others belong to the machine
//! ([`Machine::prepare_root`]).

pub use quell::Engine;
use quell::{CpuId, Extent, Frame, Hardware, Page, PageRange, Scope, TlbRules};
pub use quell::{Entry, Level, TABLE_WORDS};
use quell_zero::PhysicalMemory;

/// The first page above the 128 TB of addresses that programs may map.
pub const USER_END: Page = Page(1 << 35);

/// The frame at which the upper half of the 52-bit physical addresses begins.
const MEMORY_END: u64 = 1 << 39;

/// The largest number of memory nodes.
pub const MAX_NODES: usize = 8;

/// One node of memory (NUMA).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The usable frames: writable memory that the manager owns.
    pub extent: Extent,
    /// Whether the node is the slow tier (CXL or persistent memory), the target of demotion.
    ///
    /// Other allocations use it only on request, or when every fast node is exhausted.
    pub slow: bool,
}

/// The memory of a machine: at most [`MAX_NODES`] nodes with disjoint extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryMap {
    nodes: [Node; MAX_NODES],
    count: usize,
}

impl MemoryMap {
    /// Creates a map of these nodes.
    ///
    /// # Panics
    /// If there is no node, if there are more than [`MAX_NODES`], or if two overlap. Also if a node reaches into the
    /// upper half of the 52-bit physical addresses: non-present entries point there (see `testbed/vm/src/entry.rs`).
    pub fn new(nodes: &[Node]) -> Self {
        assert!(
            (1..=MAX_NODES).contains(&nodes.len()),
            "{} memory nodes, but 1 to {MAX_NODES} are supported",
            nodes.len()
        );
        for (index, a) in nodes.iter().enumerate() {
            let end = a.extent.first.0.saturating_add(a.extent.frames);
            assert!(
                end <= MEMORY_END,
                "a memory node ends at frame {end:#x}, but the manager can name frames below \
                 {MEMORY_END:#x} only"
            );
            for b in &nodes[..index] {
                let (low, high) = if a.extent.first < b.extent.first { (a, b) } else { (b, a) };
                assert!(
                    low.extent.first.0 + low.extent.frames <= high.extent.first.0,
                    "memory nodes overlap at frame {:#x}",
                    high.extent.first.0
                );
            }
        }
        let mut all = [nodes[0]; MAX_NODES];
        all[..nodes.len()].copy_from_slice(nodes);
        MemoryMap { nodes: all, count: nodes.len() }
    }

    /// Creates a map of one fast node with `frames` frames from `first`.
    pub fn flat(first: Frame, frames: u64) -> Self {
        Self::new(&[Node { extent: Extent { first, frames }, slow: false }])
    }

    /// Returns the nodes.
    #[inline]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes[..self.count]
    }

    /// Returns the node that contains `frame`, if there is one.
    #[inline]
    pub fn node_of(&self, frame: Frame) -> Option<usize> {
        self.nodes()
            .iter()
            .position(|node| frame.0.wrapping_sub(node.extent.first.0) < node.extent.frames)
    }
}

/// An action of the manager whose cost no other operation of the machine includes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Entering the kernel by a system call, and returning.
    SystemCall,
    /// Entering the kernel by a page fault, and returning.
    Fault,
    /// Looking up an area, or inserting or removing one.
    Area,
    /// Allocating an extent of `frames` frames.
    Allocate {
        /// The number of base frames.
        frames: u64,
        /// Whether the per-CPU cache was empty, so that the node's allocator was called.
        refill: bool,
    },
    /// Freeing an extent of `frames` frames.
    Free {
        /// The number of base frames.
        frames: u64,
        /// Whether the frames went to the node's allocator instead of the per-CPU cache.
        spill: bool,
    },
    /// Finding one mapping of a frame through the reverse map.
    ReverseMap,
    /// Isolating one frame from reclaim's lists, or adding it to them.
    List,
    /// Compressing one 4 KB page into `bytes` bytes.
    Compress {
        /// The length of the result.
        bytes: u64,
    },
    /// Decompressing one 4 KB page from `bytes` bytes.
    Decompress {
        /// The length of the input.
        bytes: u64,
    },
    /// Looking a page up in the page cache.
    CacheLookup,
    /// Reading `bytes` bytes of a file from its device.
    ReadDevice {
        /// The number of bytes.
        bytes: u64,
    },
    /// Writing `bytes` bytes of a file to its device.
    WriteDevice {
        /// The number of bytes.
        bytes: u64,
    },
    /// Choosing and switching to another process, except for loading its root.
    Schedule,
    /// A code path of a full kernel that the manager lacks.
    Path(Path),
    /// Such a path under a lock that the manager lacks, or holds for a shorter time.
    Locked(LockUse),
}

/// A code path of a full kernel that costs time but that the manager lacks.
///
/// The manager charges each path under the same locks that a full kernel holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// `mmap`, with the areas locked for writing.
    Map,
    /// `munmap`, with the areas locked for writing.
    Unmap,
    /// `mprotect`, with the areas locked for writing.
    Protect,
    /// `mremap`, with the areas locked for writing.
    Remap,
    /// `madvise(MADV_DONTNEED)` that removes a page, with the areas locked for reading.
    Advise,
    /// One area or range of an `madvise` call.
    AdviseArea,
    /// Removing a page from its table in a call, under the table's lock.
    Zap,
    /// Changing a page's rights in a call, under the table's lock.
    Change,
    /// A fault on a new anonymous page, with the areas locked for reading.
    FaultAnonymous,
    /// A fault on a page of a file, with the areas locked for reading.
    FaultFile,
    /// A fault that copies a page, with the areas locked for reading.
    FaultCopy,
    /// A fault on a swapped page.
    FaultSwap,
    /// Making or freeing a page of a page table.
    Table,
    /// Putting a page into the page cache, under the page's lock.
    CacheInsert,
    /// Evicting a page, under the page's lock.
    Evict,
}

impl Path {
    /// The number of paths.
    pub const COUNT: usize = Path::Evict as usize + 1;
}

/// A use of a lock that a full kernel holds with interrupts off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockUse {
    /// Adding a page to the reclaim lists of its node. A CPU collects several before it takes the lock.
    ListAdd(Frame),
    /// Moving the pages that this CPU has collected to the reclaim lists of this node.
    ListDrain(usize),
    /// Removing several pages together from the reclaim lists of this node.
    ListRemove(usize),
    /// Removing freed pages, of which this is the last, from the reclaim lists of their node.
    ListFree(Frame),
    /// Moving frames between the node's allocator and a CPU's cache.
    Zone {
        /// The node.
        node: usize,
        /// The number of frames.
        frames: u64,
    },
    /// Adding a page of this file to the page cache, or removing one.
    File(u32),
}

/// An event for an oracle. The CPU that causes it reports it when it takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Frames got an owner.
    ///
    /// It's reported before the owner accesses or maps them, and before they are zeroed for [`Event::FrameZeroed`].
    FrameAllocated {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// Frames are handed out as zeroed: from now on, programs may see them, and they must contain zeros.
    FrameZeroed {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// Frames lost their owner.
    ///
    /// They may get another one at once, or only after their flush if a flush is deferred.
    FrameFreed {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// A frame with a deferred flush was mapped again for its page (reinstated). It has no new owner.
    FrameReinstated {
        /// The frame.
        frame: Frame,
    },
    /// A frame became a page-table page, zeroed.
    TableAllocated {
        /// The frame.
        frame: Frame,
        /// The level of the table.
        level: Level,
    },
    /// A frame is no page-table page any more: no walker may read it from now on.
    TableFreed {
        /// The frame.
        frame: Frame,
    },
    /// The content of frames is captured now: swapped, written to a device, migrated or copied.
    ///
    /// From now on, no store may reach them through a translation that is older than this moment. Stores through
    /// entries that become writable later are allowed.
    Captured {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// A call that unmapped `range` is about to return to the program.
    ///
    /// Old translations must have been flushed. Such calls are unmap, discard, remap (for the old place) and
    /// truncation.
    ReturnedUnmap {
        /// The root of the address space.
        root: Frame,
        /// The range.
        range: PageRange,
    },
    /// A call that reduced the rights to `range` is about to return to the program.
    ReturnedProtect {
        /// The root of the address space.
        root: Frame,
        /// The range.
        range: PageRange,
        /// Whether programs may read.
        readable: bool,
        /// Whether programs may write.
        writable: bool,
        /// Whether programs may execute.
        executable: bool,
    },
    /// An address space has ended: no CPU may use its root.
    SpaceRetired {
        /// The root.
        root: Frame,
    },
}

/// Translations of a space that changed.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The root of the space.
    pub root: Frame,
    /// The pages whose entries changed.
    pub range: PageRange,
    /// Whether tables were unlinked, too.
    pub scope: Scope,
    /// The block that a removed entry mapped.
    pub removed: Option<Frame>,
}

/// Why pages are freed by changes that do nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freed {
    /// Their addresses are no longer mapped (`munmap`).
    Unmapped,
    /// Their content is dropped (`MADV_DONTNEED`).
    Discarded,
    /// Reclaim evicts clean pages of files.
    Evicted,
}

/// The machine on which the manager runs.
///
/// # Safety
/// Nothing else uses the memory of [`Machine::memory`] while the manager exists. All functions reach the same words and
/// bytes of a frame. No function reaches memory outside that: for a frame elsewhere, or an offset outside the frame, it
/// panics or does nothing. [`Machine::decode`] is the inverse of [`Machine::encode`].
pub unsafe trait Machine: Hardware + PhysicalMemory {
    /// Returns the memory that the manager owns. It must not change while the manager exists.
    fn memory(&self) -> MemoryMap;

    /// Returns the number of CPUs, which must not change.
    fn cpu_count(&self) -> usize;

    /// Returns the memory node next to `cpu`, an index into [`MemoryMap::nodes`].
    fn home_node(&self, _cpu: CpuId) -> usize {
        0
    }

    /// Returns the words of the page-table page in `frame`, which the walkers also read.
    ///
    /// `frame` may be any frame of [`Machine::memory`]. The manager's own walks read words without a lock, and check
    /// afterwards that the frame was still a table.
    fn table(&self, frame: Frame) -> &[Self::Word; TABLE_WORDS];

    /// Returns the indices of words that may be non-zero, in ascending order.
    ///
    /// The result may include zero words. Audits of a machine at rest use it to read all tables.
    fn words_in_use(&self, frame: Frame) -> impl Iterator<Item = usize> {
        let _ = frame;
        0..TABLE_WORDS
    }

    /// Fills the words from 256 on of a new root, which belong to the machine.
    ///
    /// All words of the root are zero before the call.
    fn prepare_root(&self, _root: Frame) {}

    /// Returns whether [`Machine::flush`] replaces the engine's flushes.
    #[inline]
    fn flushes_itself(&self) -> bool {
        false
    }

    /// Makes all CPUs drop changed translations, and waits for them.
    ///
    /// Returns 0. If the changes do nothing but free pages (`freed`), it may return before the CPUs have dropped them.
    /// Then it returns the time ([`Machine::now`]) until which the pages must not be reused, or 0 if it drops them when
    /// they are allocated ([`Event::FrameAllocated`]).
    fn flush(&self, _changes: &[Change], _freed: Option<Freed>) -> u64 {
        0
    }

    /// Encodes a present entry of a table of `level`. The manager never passes an entry with `present` clear.
    fn encode(&self, entry: Entry, level: Level) -> u64;

    /// Decodes a word of a table of `level`. Bit 0 is `present`.
    fn decode(&self, word: u64, level: Level) -> Entry;

    /// Returns whether walkers set `accessed` and `dirty` themselves.
    ///
    /// If not, the manager sets `accessed` in every new entry, and the first store faults.
    fn hardware_dirty(&self) -> bool;

    /// Returns the rules of the machine's TLBs: the entries that they may keep and the changes that are forbidden.
    fn tlb_rules(&self) -> TlbRules;

    /// Reads bytes of a frame through the kernel's own mapping.
    ///
    /// `offset + into.len()` is at most 4096.
    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]);

    /// Writes bytes of a frame through the kernel's own mapping.
    ///
    /// `offset + from.len()` is at most 4096.
    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]);

    /// Copies `frames` frames.
    fn copy_frames(&self, from: Frame, to: Frame, frames: u64);

    /// Returns the nanoseconds since an arbitrary moment: virtual ones on a machine in software.
    fn now(&self) -> u64;

    /// Halts this CPU until an interrupt has been served or the clock has reached `until`.
    fn halt(&self, until: u64) {
        while self.now() < until {
            self.relax();
        }
    }

    /// Returns whether locks that Linux takes in interrupt handlers mask interrupts here too.
    ///
    /// These are the locks of the allocator, of reclaim's lists and of a file's dirty pages. The manager has no such
    /// handlers, so only a machine that models the cost of masking returns `true`.
    #[inline(always)]
    fn masks_locks(&self) -> bool {
        false
    }

    /// Offers a preemption point while a long extent is zeroed.
    ///
    /// The thread continues on the same CPU.
    #[inline(always)]
    fn preempt(&self) {}

    /// Charges the time of some work.
    ///
    /// Real machines do nothing, because there the work itself takes time.
    #[inline(always)]
    fn charge(&self, _work: Work) {}

    /// Reports an event to an oracle. Real machines do nothing.
    #[inline(always)]
    fn note(&self, _event: Event) {}
}
