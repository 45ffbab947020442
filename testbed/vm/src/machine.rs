//! The interface of a machine to the memory manager, beyond what the engine needs.
//!
//! [`Machine`] extends [`Hardware`] and [`Clear`] with physical memory: where it lies, how page-table entries are
//! encoded, how the kernel reaches the words of a table and the bytes of a frame. The kernel that
//! boots answers with its direct map and does nothing in [`Machine::charge`] and
//! [`Machine::note`]; the machine in software charges virtual time and tells its oracle.
//!
//! # Page tables
//!
//! Four levels of 512 words, [`Level::ROOT`] down to [`Level::LEAF`]. An entry that is not present
//! has bit 0 clear on every machine that is supported; its other 63 bits belong to the manager,
//! which keeps swap slots and markers there and never asks the machine to encode them. Table words
//! are shared with the hardware walkers, which may set `accessed` and `dirty` at any time when
//! [`Machine::hardware_dirty`] says so. The manager uses the first 256 words of a root; the others
//! belong to the machine, see [`Machine::prepare_root`].

pub use quell::Engine;
use quell::{CpuId, Extent, Frame, Hardware, Page, PageRange, TlbRules};
pub use quell::{Entry, Level, TABLE_WORDS};
use quell_zero::Clear;

/// The first page after the part of an address space that programs may map: 128 TB.
pub const USER_END: Page = Page(1 << 35);

/// The frame where the upper half of the 52-bit physical addresses begins.
const MEMORY_END: u64 = 1 << 39;

/// The largest number of memory nodes.
pub const MAX_NODES: usize = 8;

/// One memory node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// The usable frames, all of them writable memory that nothing else uses.
    pub extent: Extent,
    /// Whether the node is the slow tier (CXL or persistent memory): the target of demotion. Other allocations use it
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
    /// A map of these nodes.
    ///
    /// # Panics
    /// If there is no node, more than [`MAX_NODES`], two overlap, or one reaches into the upper half
    /// of the 52-bit physical addresses: entries that are not present point there, see
    /// `testbed/vm/src/entry.rs`.
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

    /// A map of one fast node of `frames` frames from `first`.
    pub fn flat(first: Frame, frames: u64) -> Self {
        Self::new(&[Node {
            extent: Extent { first, frames },
            slow: false,
        }])
    }

    /// The nodes.
    #[inline]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes[..self.count]
    }

    /// The node that holds `frame`, if one does.
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
    /// Allocating an extent of `frames` frames. `refill` if the per-CPU cache was empty and the node's allocator was
    /// called.
    Allocate {
        /// How many base frames.
        frames: u64,
        /// Whether the node's allocator was called.
        refill: bool,
    },
    /// Freeing an extent of `frames` frames. `spill` if it went to the node's allocator.
    Free {
        /// How many base frames.
        frames: u64,
        /// Whether it went to the node's allocator.
        spill: bool,
    },
    /// Finding one mapping of a frame through the reverse map.
    ReverseMap,
    /// Isolating one frame from, or adding it to, the lists that reclaim works on.
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
        /// How many bytes.
        bytes: u64,
    },
    /// Writing `bytes` bytes of a file to its device.
    WriteDevice {
        /// How many bytes.
        bytes: u64,
    },
    /// Choosing and switching to another process, apart from loading its root.
    Schedule,
    /// Code of a full kernel that the manager does without.
    Path(Path),
    /// The same under a lock that the manager does not have, or holds for less.
    Locked(LockUse),
}

/// A piece of a kernel's code. Each is accounted for under the locks that the manager holds there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// `mmap`, under the lock of the areas for writing, as the next three.
    Map,
    /// `munmap`.
    Unmap,
    /// `mprotect`.
    Protect,
    /// `mremap`.
    Remap,
    /// `madvise(MADV_DONTNEED)`, under the lock of the areas for reading.
    Advise,
    /// Each area, or range, of such a call.
    AdviseArea,
    /// Removing a page from its table for a call, under the table's lock.
    Zap,
    /// Changing a page's rights for a call, under the table's lock.
    Change,
    /// A fault on a new anonymous page, under the lock of the areas for reading, as the next three.
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
    /// How many there are.
    pub const COUNT: usize = Path::Evict as usize + 1;
}

/// A use of a lock that a full kernel holds with interrupts off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockUse {
    /// A page of the node is to join the lists of reclaim. A CPU collects some before it takes the lock.
    ListAdd(usize),
    /// The pages that this CPU has collected join the lists now.
    ListDrain(usize),
    /// Pages leave the node's lists together.
    ListRemove(usize),
    /// Frames move between the node's allocator and a CPU's cache.
    Zone {
        /// The node.
        node: usize,
        /// How many.
        frames: u64,
    },
    /// A page joins or leaves the page cache of the file.
    File(u32),
}

/// An event for an oracle. The CPU that causes it reports it at the moment it takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The frames got an owner. Reported before the owner touches or maps them, and before they
    /// are zeroed if `zeroed` is to hold.
    FrameAllocated {
        /// The first frame.
        frame: Frame,
        /// How many base frames.
        frames: u64,
    },
    /// The frames are handed out as zeroed: from here on they are visible to programs and must
    /// contain zeros.
    FrameZeroed {
        /// The first frame.
        frame: Frame,
        /// How many base frames.
        frames: u64,
    },
    /// The frames lost their owner and may get another one after a reuse (if a flush is deferred) or
    /// at once (if not).
    FrameFreed {
        /// The first frame.
        frame: Frame,
        /// How many base frames.
        frames: u64,
    },
    /// A stale frame went back to the page it belonged to, without a new owner.
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
    /// The frame is no page-table page any more: no walker may read it from here on.
    TableFreed {
        /// The frame.
        frame: Frame,
    },
    /// The content of the frames is captured now (swapped, written to a device, migrated, copied):
    /// from here on no store may reach them through a translation that is older than this moment.
    /// Stores through entries that become writable later are fine.
    Captured {
        /// The first frame.
        frame: Frame,
        /// How many base frames.
        frames: u64,
    },
    /// A call that unmapped `range` (unmap, discard, the old place of a remap, truncation) is about to return to the
    /// program: old translations must be flushed.
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
/// Nothing else uses the memory of [`Machine::memory`] while the manager exists. A frame has the same words and bytes
/// in every function. Given a frame outside that memory, or an offset outside the frame, a function panics or does
/// nothing, so that no caller reaches other memory through it. [`Machine::decode`] is the inverse of
/// [`Machine::encode`].
pub unsafe trait Machine: Hardware + Clear {
    /// The memory that the manager owns. Must not change after the manager was made.
    fn memory(&self) -> MemoryMap;

    /// How many CPUs the machine has. Must not change.
    fn cpu_count(&self) -> usize;

    /// The memory node next to `cpu`, an index into [`MemoryMap::nodes`].
    fn home_node(&self, _cpu: CpuId) -> usize {
        0
    }

    /// The words of the page-table page in `frame`, the same that the walkers read.
    ///
    /// `frame` may be any frame of [`Machine::memory`]: the manager's own walks look at words
    /// optimistically and check afterwards that the frame was still a table.
    fn table(&self, frame: Frame) -> &[Self::Word; TABLE_WORDS];

    /// The words of a table-page that may not be zero, in ascending order: at least those that are not. For audits of a
    /// machine at rest, which look at all words of all tables.
    fn words_in_use(&self, frame: Frame) -> impl Iterator<Item = usize> {
        let _ = frame;
        0..TABLE_WORDS
    }

    /// Prepares a new root, all of whose words are zero: fills the words from 256 on, which belong
    /// to the machine.
    fn prepare_root(&self, _root: Frame) {}

    /// Encodes a present entry of a table of `level`. Entries with `present` clear are never
    /// encoded.
    fn encode(&self, entry: Entry, level: Level) -> u64;

    /// Decodes a word of a table of `level`. `present` is bit 0.
    fn decode(&self, word: u64, level: Level) -> Entry;

    /// Returns whether walkers set `accessed` and `dirty` themselves. If not, the manager makes every entry with
    /// `accessed` set and takes a fault for the first store.
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

    /// Nanoseconds since an arbitrary moment; virtual in the machine in software.
    fn now(&self) -> u64;

    /// Halts this CPU until an interrupt was served or the clock reached `until`.
    fn halt(&self, until: u64) {
        while self.now() < until {
            self.relax();
        }
    }

    /// Returns whether the locks of the allocator, of reclaim's lists and of a file's dirty pages are taken and held
    /// with interrupts off, as in Linux, whose interrupt handlers take them. The manager has no such handlers, so only
    /// a machine that models the cost returns `true`.
    #[inline(always)]
    fn masks_locks(&self) -> bool {
        false
    }

    /// A preemption point while a long extent is zeroed. The thread continues on the same CPU.
    #[inline(always)]
    fn preempt(&self) {}

    /// Accounts for work. Real machines do nothing: there the work itself takes its time.
    #[inline(always)]
    fn charge(&self, _work: Work) {}

    /// Reports an event to an oracle. Real machines do nothing.
    #[inline(always)]
    fn note(&self, _event: Event) {}
}
