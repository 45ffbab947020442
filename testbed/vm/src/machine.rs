//! The interface of a machine to the memory manager, beyond the engine's needs.
//!
//! [`Machine`] extends [`Hardware`] and [`Clear`] with physical memory: its location, the encoding of page-table
//! entries, and the kernel's access to words of a table and bytes of a frame. Our kernel implements it with its direct
//! map, and does nothing in [`Machine::charge`] and [`Machine::note`]. The machine in software charges virtual time
//! there and informs its oracle.
//!
//! # Page tables
//!
//! Four levels of 512 words, [`Level::ROOT`] down to [`Level::LEAF`]. A non-present entry has bit 0 clear on every
//! supported machine. Its other 63 bits belong to the manager, which keeps swap slots and markers there; the machine
//! never encodes them. Hardware walkers share the table words. If [`Machine::hardware_dirty`], they may set `accessed`
//! and `dirty` at any time. The manager uses the first 256 words of a root; the others belong to the machine
//! ([`Machine::prepare_root`]).

pub use quell::Engine;
use quell::{CpuId, Extent, Frame, Hardware, Page, PageRange, TlbRules};
pub use quell::{Entry, Level, TABLE_WORDS};
use quell_zero::Clear;

/// The first page above the 128 TB of an address space that programs may map.
pub const USER_END: Page = Page(1 << 35);

/// The frame at which the upper half of the 52-bit physical addresses begins.
const MEMORY_END: u64 = 1 << 39;

/// The largest number of memory nodes.
pub const MAX_NODES: usize = 8;

/// One memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The usable frames: writable memory that nothing else uses.
    pub extent: Extent,
    /// Whether the node is the slow tier (CXL or persistent memory), the target of demotion. Other allocations use it
    /// only on request, or when every fast node is exhausted.
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
    /// If there is no node, more than [`MAX_NODES`], two overlap, or one reaches into the upper half of the 52-bit
    /// physical addresses: non-present entries point there, see `testbed/vm/src/entry.rs`.
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
                let (low, high) = if a.extent.first < b.extent.first {
                    (a, b)
                } else {
                    (b, a)
                };
                assert!(
                    low.extent.first.0 + low.extent.frames <= high.extent.first.0,
                    "memory nodes overlap at frame {:#x}",
                    high.extent.first.0
                );
            }
        }
        let mut all = [nodes[0]; MAX_NODES];
        all[..nodes.len()].copy_from_slice(nodes);
        MemoryMap {
            nodes: all,
            count: nodes.len(),
        }
    }

    /// Creates a map of one fast node with `frames` frames from `first`.
    pub fn flat(first: Frame, frames: u64) -> Self {
        Self::new(&[Node {
            extent: Extent { first, frames },
            slow: false,
        }])
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

/// Work of the manager that no other operation of the machine accounts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Entry into the kernel by a system call and the return from it.
    SystemCall,
    /// Entry into the kernel by a page fault and the return from it.
    Fault,
    /// Looking up an area, or inserting or removing one.
    Area,
    /// Allocating an extent of `frames` frames. `refill` if the per-CPU cache was empty, so that the node's allocator
    /// was called.
    Allocate {
        /// The number of base frames.
        frames: u64,
        /// Whether the node's allocator was called.
        refill: bool,
    },
    /// Freeing an extent of `frames` frames. `spill` if the node's allocator took it.
    Free {
        /// The number of base frames.
        frames: u64,
        /// Whether the node's allocator took it.
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
    /// Code of a full kernel that the manager lacks.
    Path(Path),
    /// The same, under a lock that the manager lacks or holds for a shorter time.
    Locked(LockUse),
}

/// A piece of a kernel's code. Each is accounted for under the locks that the manager holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// `mmap`, with the areas locked for writing, like the next three.
    Map,
    /// `munmap`.
    Unmap,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Remap,
    /// `madvise(MADV_DONTNEED)`, with the areas locked for reading.
    Advise,
    /// Each area or range of such a call.
    AdviseArea,
    /// Removing a page from its table in a call, under the table's lock.
    Zap,
    /// Changing a page's rights in a call, under the table's lock.
    Change,
    /// A fault on a new anonymous page, with the areas locked for reading, like the next three.
    FaultAnonymous,
    /// A fault on a page of a file.
    FaultFile,
    /// A fault that copies a page.
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
    /// The number of pieces.
    pub const COUNT: usize = Path::Evict as usize + 1;
}

/// A use of a lock that a full kernel holds with interrupts off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockUse {
    /// A page of the node will join the lists of reclaim. A CPU collects some before it takes the lock.
    ListAdd(usize),
    /// The pages that this CPU has collected join the lists.
    ListDrain(usize),
    /// Pages leave the node's lists together.
    ListRemove(usize),
    /// Frames move between the node's allocator and a CPU's cache.
    Zone {
        /// The node.
        node: usize,
        /// The number of frames.
        frames: u64,
    },
    /// A page joins or leaves the page cache of the file.
    File(u32),
}

/// An event for an oracle. The CPU that causes it reports it when it takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The frames got an owner. Reported before the owner touches or maps them, and before they are zeroed for
    /// [`Event::FrameZeroed`].
    FrameAllocated {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// The frames are handed out as zeroed: from now on they are visible to programs and must contain zeros.
    FrameZeroed {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// The frames lost their owner. They may get another one at once or, if a flush is deferred, after a reuse.
    FrameFreed {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// A stale frame returned to its page, without a new owner.
    FrameReinstated {
        /// The frame.
        frame: Frame,
    },
    /// The frame became a page-table page, zeroed.
    TableAllocated {
        /// The frame.
        frame: Frame,
        /// The level of the table.
        level: Level,
    },
    /// The frame is no page-table page any more: no walker may read it from now on.
    TableFreed {
        /// The frame.
        frame: Frame,
    },
    /// The content of the frames is captured now (swapped, written to a device, migrated, copied). From now on no store
    /// may reach them through a translation that is older than this moment. Stores through entries that become writable
    /// later are allowed.
    Captured {
        /// The first frame.
        frame: Frame,
        /// The number of base frames.
        frames: u64,
    },
    /// A call that unmapped `range` (unmap, discard, the old place of a remap, truncation) is about to return to the
    /// program: old translations must have been flushed.
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
    /// The address space has ended: no CPU may use its root.
    SpaceRetired {
        /// The root.
        root: Frame,
    },
}

/// The machine under the manager.
///
/// # Safety
/// Nothing else uses the memory of [`Machine::memory`] while the manager exists. All functions reach the same words and
/// bytes of a frame. Given a frame outside that memory, or an offset outside the frame, a function panics or does
/// nothing, so that no caller reaches other memory. [`Machine::decode`] is the inverse of [`Machine::encode`].
pub unsafe trait Machine: Hardware + Clear {
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
    /// `frame` may be any frame of [`Machine::memory`]: the manager's own walks read words optimistically and check
    /// afterwards that the frame was still a table.
    fn table(&self, frame: Frame) -> &[Self::Word; TABLE_WORDS];

    /// Returns the indices of words that may be non-zero, in ascending order; zero words may be among them. Audits of a
    /// machine at rest use this to read all tables.
    fn words_in_use(&self, frame: Frame) -> impl Iterator<Item = usize> {
        let _ = frame;
        0..TABLE_WORDS
    }

    /// Prepares a new root whose words are all zero, by filling the words from 256 on, which belong to the machine.
    fn prepare_root(&self, _root: Frame) {}

    /// Encodes a present entry of a table of `level`. The manager never passes an entry with `present` clear.
    fn encode(&self, entry: Entry, level: Level) -> u64;

    /// Decodes a word of a table of `level`. Bit 0 is `present`.
    fn decode(&self, word: u64, level: Level) -> Entry;

    /// Returns whether walkers set `accessed` and `dirty` themselves. If not, the manager sets `accessed` in every new
    /// entry, and the first store faults.
    fn hardware_dirty(&self) -> bool;

    /// Returns the behaviour of the machine's TLBs, and the changes of entries that it forbids.
    fn tlb_rules(&self) -> TlbRules;

    /// Reads bytes of a frame through the kernel's own mapping. `offset + into.len()` is at most
    /// 4096.
    fn read_frame(&self, frame: Frame, offset: usize, into: &mut [u8]);

    /// Writes bytes of a frame through the kernel's own mapping. `offset + from.len()` is at most
    /// 4096.
    fn write_frame(&self, frame: Frame, offset: usize, from: &[u8]);

    /// Copies `frames` frames.
    fn copy_frames(&self, from: Frame, to: Frame, frames: u64);

    /// Returns nanoseconds since an arbitrary moment; virtual ones in the machine in software.
    fn now(&self) -> u64;

    /// Halts this CPU until an interrupt has been served or the clock has reached `until`.
    fn halt(&self, until: u64) {
        while self.now() < until {
            self.relax();
        }
    }

    /// Returns whether locks that Linux takes in interrupt handlers mask interrupts here too. These are the locks of
    /// the allocator, of reclaim's lists and of a file's dirty pages. The manager has no such handlers, so only a
    /// machine that models the cost returns `true`.
    #[inline(always)]
    fn masks_locks(&self) -> bool {
        false
    }

    /// Offers a preemption point while a long extent is zeroed. The thread continues on the same CPU.
    #[inline(always)]
    fn preempt(&self) {}

    /// Accounts for work. Real machines do nothing, because there the work itself takes time.
    #[inline(always)]
    fn charge(&self, _work: Work) {}

    /// Reports an event to an oracle. Real machines do nothing.
    #[inline(always)]
    fn note(&self, _event: Event) {}
}
