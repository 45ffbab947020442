//! The parameters of a machine: names, meanings, units and ranges.
//!
//! [`PARAMETERS`] is the only table of parameters. The parser checks files against it, `quell list` prints it, and the
//! machine reads values by [`Parameter`], so the compiler finds a misspelt name.

use crate::architecture::Architecture;

/// The unit of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// A time in `cycles` (of the core clock), `ns` or `us`.
    Time,
    /// A frequency: `GHz` or `MHz`.
    Frequency,
    /// An amount of memory: `B`, `KB`, `MB`, `GB` (powers of 1024).
    Bytes,
    /// A transfer rate: `GB/s` (10^9 bytes a second).
    Rate,
    /// A number, written with the unit `entries`, `ways`, `CPUs` or `1`.
    Count,
    /// A factor without dimension, written with the unit `1`.
    Factor,
    /// One of these words, written as a string without unit.
    Choice(&'static [&'static str]),
}

impl Unit {
    /// Returns the units that files may contain, with their factors to the canonical unit.
    ///
    /// Canonical units are picoseconds, gigahertz, bytes, bytes per nanosecond and the number itself. The factor of
    /// `cycles` depends on the core clock, so the reader applies it.
    pub fn spellings(self) -> &'static [(&'static str, f64)] {
        match self {
            Unit::Time => &[("cycles", 0.0), ("ns", 1e3), ("us", 1e6)],
            Unit::Frequency => &[("GHz", 1.0), ("MHz", 1e-3)],
            Unit::Bytes => &[
                ("B", 1.0),
                ("KB", 1024.0),
                ("MB", 1024.0 * 1024.0),
                ("GB", 1024.0 * 1024.0 * 1024.0),
            ],
            Unit::Rate => &[("GB/s", 1.0)],
            Unit::Count => &[("1", 1.0), ("entries", 1.0), ("ways", 1.0), ("CPUs", 1.0)],
            Unit::Factor => &[("1", 1.0)],
            Unit::Choice(_) => &[],
        }
    }

    /// Returns the unit of printed ranges, after a space; nothing for plain numbers and words.
    pub const fn of_ranges(self) -> &'static str {
        match self {
            Unit::Time => " ns",
            Unit::Frequency => " GHz",
            Unit::Bytes => " B",
            Unit::Rate => " GB/s",
            Unit::Count | Unit::Factor | Unit::Choice(_) => "",
        }
    }
}

/// The description of a parameter: a row of [`PARAMETERS`].
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The parameter's section in a file.
    pub section: &'static str,
    /// The parameter's key in the section.
    pub key: &'static str,
    /// The parameter's unit.
    pub unit: Unit,
    /// The least value, in the first unit of [`Unit::spellings`] that is not `cycles`.
    pub least: f64,
    /// The largest value, in the same unit.
    pub most: f64,
    /// The parameter's meaning.
    pub meaning: &'static str,
}

macro_rules! parameters {
    ($($section:ident { $($(#[doc = $doc:literal])+ $name:ident $key:ident: $unit:expr, $least:literal ..= $most:literal;)* })*) => {
        /// A parameter of a machine.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Parameter { $($($(#[doc = $doc])+ $name,)*)* }

        impl Parameter {
            /// Every parameter, in the order of the table.
            pub const ALL: &'static [Parameter] = &[$($(Parameter::$name,)*)*];
        }

        /// The description of each parameter, indexed by [`Parameter`].
        pub static PARAMETERS: &[Description] = &[$($(Description {
            section: stringify!($section),
            key: stringify!($key),
            unit: $unit,
            least: $least as f64,
            most: $most as f64,
            meaning: concat!($($doc),+),
        },)*)*];
    };
}

impl Parameter {
    /// Returns the parameter's row of [`PARAMETERS`].
    #[inline]
    pub fn description(self) -> &'static Description {
        &PARAMETERS[self as usize]
    }

    /// Returns whether kernel files contain the parameter.
    ///
    /// If so, it's a cost of the kernel's own code, not of the machine.
    pub fn of_kernel(self) -> bool {
        matches!(self.description().section, "kernel" | "lock")
    }

    /// Returns whether policy files contain the parameter.
    pub fn of_policy(self) -> bool {
        matches!(self.description().section, "policy" | "contract")
    }

    /// Returns `section.key`, the name that users type.
    pub fn name(self) -> String {
        let Description { section, key, .. } = self.description();
        format!("{section}.{key}")
    }

    /// Returns the parameter with a `section.key` name.
    pub fn from_name(name: &str) -> Option<Self> {
        let (section, key) = name.split_once('.')?;
        Self::find(section, key)
    }

    /// Returns the parameter with a section and a key.
    pub fn find(section: &str, key: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|parameter| {
            let description = parameter.description();
            description.section == section && description.key == key
        })
    }
}

parameters! {
    cpu {
        /// The format of page tables and the way remote translations are invalidated.
        Architecture architecture: Unit::Choice(Architecture::NAMES), 0..=0;
        /// Clock of the core; times given in cycles are multiples of its period.
        Frequency frequency: Unit::Frequency, 0.1..=10;
        /// The default number of CPUs of a run.
        Cpus cpus: Unit::Count, 1..=1024;
        /// CPUs that share a socket, its last-level cache and its memory node.
        CpusPerSocket cpus_per_socket: Unit::Count, 1..=1024;
        /// CPUs that share a core and its private caches (hardware threads).
        CpusPerCore cpus_per_core: Unit::Count, 1..=8;
        /// The factor by which a CPU slows down while another CPU of its core works.
        Sharing sharing: Unit::Factor, 1..=8;
        /// One iteration of a wait loop (`pause`, `yield`).
        Pause pause: Unit::Time, 0.1..=1000;
        /// A full barrier when no store is outstanding.
        Fence fence: Unit::Time, 0.1..=10000;
        /// The cost of a locked operation beyond the access to its line.
        Atomic atomic: Unit::Time, 0..=1000;
        /// Masking or unmasking interrupts.
        Mask mask: Unit::Time, 0..=1000;
    }
    tlb {
        /// First-level data TLB: entries for 4 KB pages.
        L1Base l1_base: Unit::Count, 1..=1024;
        /// First-level data TLB: ways of the entries for 4 KB pages; as many as entries means fully associative.
        L1BaseWays l1_base_ways: Unit::Count, 1..=1024;
        /// First-level data TLB: entries for 2 MB pages; 0 if the 4 KB entries hold every size.
        L1Large l1_large: Unit::Count, 0..=1024;
        /// First-level data TLB: ways of the entries for 2 MB pages.
        L1LargeWays l1_large_ways: Unit::Count, 0..=1024;
        /// First-level data TLB: entries for 1 GB pages; 0 if the 4 KB entries hold every size.
        L1Huge l1_huge: Unit::Count, 0..=1024;
        /// First-level data TLB: ways of the entries for 1 GB pages.
        L1HugeWays l1_huge_ways: Unit::Count, 0..=1024;
        /// Second-level TLB: entries for 4 KB and 2 MB pages.
        L2 l2: Unit::Count, 1..=65536;
        /// Second-level TLB: ways.
        L2Ways l2_ways: Unit::Count, 1..=1024;
        /// Second-level TLB: entries for 1 GB pages; 0 if it holds none.
        L2Huge l2_huge: Unit::Count, 0..=1024;
        /// Second-level TLB: ways of the entries for 1 GB pages.
        L2HugeWays l2_huge_ways: Unit::Count, 0..=1024;
        /// The replacement policy of a set.
        Replacement replacement: Unit::Choice(&["lru", "pseudo-lru"]), 0..=0;
        /// The cost of an access that misses the first level and hits the second.
        L2Hit l2_hit: Unit::Time, 0.1..=1000;
        /// Walker cache: entries that name leaf tables (2 MB of reach each).
        WalkerLeaf walker_leaf: Unit::Count, 0..=1024;
        /// Walker cache: entries that name tables of 2 MB entries (1 GB of reach each).
        WalkerLarge walker_large: Unit::Count, 0..=1024;
        /// Walker cache: entries that name tables of 1 GB entries (512 GB of reach each).
        WalkerHuge walker_huge: Unit::Count, 0..=1024;
        /// The cost of a walk beyond the tables it reads.
        Walk walk: Unit::Time, 0..=1000;
        /// The factor by which nested paging lengthens a walk.
        NestedWalk nested_walk: Unit::Factor, 1..=30;
        /// Whether walkers set accessed and dirty bits themselves.
        HardwareDirty hardware_dirty: Unit::Choice(&["no", "yes"]), 0..=0;
        /// The tags of entries: none, per CPU (x86), or system-wide with 8 or 16 bits (Arm).
        Tags tags: Unit::Choice(&["none", "pcid", "asid8", "asid16"]), 0..=0;
    }
    invalidate {
        /// Invalidating one page on this CPU.
        InvalidatePage page: Unit::Time, 0.1..=100000;
        /// Invalidating one tag on this CPU.
        InvalidateTag tag: Unit::Time, 0.1..=100000;
        /// Invalidating everything on this CPU.
        InvalidateAll all: Unit::Time, 0.1..=100000;
        /// Loading a root and keeping the entries under its tag.
        RootKeep root_keep: Unit::Time, 0.1..=100000;
        /// Loading a root and dropping the entries under its tag.
        RootFlush root_flush: Unit::Time, 0.1..=100000;
        /// The most pages of a range that are invalidated one by one; a longer one is invalidated as a whole.
        FullAbove full_above: Unit::Count, 1..=1000000;
        /// The most separate ranges of a request; one with more is invalidated as a whole.
        Ranges ranges: Unit::Count, 1..=11;
        /// The fewest targets for which the engine's S4 shares cache lines among targets; 0 for never. With 0, flushes
        /// of one process at the same time aren't shared either, as in published kernels.
        SharesLinesFrom shares_lines_from: Unit::Count, 0..=1024;
    }
    broadcast {
        /// Whether invalidations reach other CPUs without an interrupt.
        Broadcast hardware: Unit::Choice(&["no", "yes"]), 0..=0;
        /// Issuing one broadcast invalidation, without waiting.
        BroadcastIssue issue: Unit::Time, 0..=100000;
        /// From issue to completion on every CPU, if no other broadcast is under way.
        BroadcastLatency latency: Unit::Time, 0..=100000;
        /// The additional wait for completion if the CPU has filled a page (compressed or copied into it) since its
        /// last one: the barrier waits for those stores too.
        BroadcastDrain drain: Unit::Time, 0..=100000;
        /// The time for which one broadcast invalidation occupies the interconnect, per CPU that must answer.
        BroadcastOccupancy occupancy: Unit::Time, 0..=100000;
        /// The cost of one broadcast invalidation for every other CPU.
        BroadcastDisturb disturb: Unit::Time, 0..=100000;
    }
    interrupt {
        /// Sending to the first target, or the first target of a cluster.
        InterruptSend send: Unit::Time, 0.1..=100000;
        /// CPUs that one send can address at once.
        InterruptCluster cluster: Unit::Count, 1..=1024;
        /// From the end of sending until a target in the same socket notices.
        InterruptDelivery delivery: Unit::Time, 1..=100000;
        /// The additional time when sender and target are on different sockets.
        InterruptRemote remote: Unit::Time, 0..=100000;
        /// The time for which an interrupt from another socket occupies the link to its target; later ones queue.
        InterruptLink link: Unit::Time, 0..=100000;
        /// Entering the handler.
        InterruptEntry entry: Unit::Time, 0.1..=100000;
        /// Leaving the handler, end-of-interrupt included.
        InterruptExit exit: Unit::Time, 0.1..=100000;
        /// First-level cache lines that the interrupted program must fetch from the second level again, because the
        /// handler displaced them, except those included in interrupt.exit.
        Displaced displaced: Unit::Count, 0..=65536;
        /// The time that a halted CPU needs to wake before it can enter the handler.
        IdleWake idle_wake: Unit::Time, 0..=1000000;
    }
    cache {
        /// A line that this CPU holds in its first-level cache.
        L1Hit l1_hit: Unit::Time, 0.1..=1000;
        /// A line that this core holds in its second-level cache.
        CacheL2Hit l2_hit: Unit::Time, 0.1..=1000;
        /// A line in the last-level cache of the socket.
        LlcHit llc_hit: Unit::Time, 0.1..=10000;
        /// Size of the first-level data cache.
        L1Size l1_size: Unit::Bytes, 1024..=16777216;
        /// Size of the second-level cache of a core.
        CacheL2Size l2_size: Unit::Bytes, 1024..=268435456;
        /// Size of the last-level cache that a core can use.
        LlcSize llc_size: Unit::Bytes, 1024..=4294967296.0;
        /// Taking a line that another CPU of the same core changed.
        TransferCore transfer_core: Unit::Time, 0.1..=100000;
        /// Taking a line that another core of the socket changed, or taking it away from readers there.
        TransferSocket transfer_socket: Unit::Time, 0.1..=100000;
        /// Taking a line that a core of another socket changed, or taking it away from readers there.
        TransferRemote transfer_remote: Unit::Time, 0.1..=100000;
    }
    memory {
        /// Memory nodes of ordinary memory; sockets share them in turn.
        Nodes nodes: Unit::Count, 1..=8;
        /// Size of each node of ordinary memory.
        NodeSize node_size: Unit::Bytes, 1048576..=17592186044416.0;
        /// Nodes of slow memory (CXL).
        SlowNodes slow_nodes: Unit::Count, 0..=4;
        /// Size of each slow node.
        SlowSize slow_size: Unit::Bytes, 1048576..=17592186044416.0;
        /// Reading a line from the local node.
        MemoryLatency latency: Unit::Time, 1..=100000;
        /// Reading a line from a node of another socket.
        RemoteLatency remote_latency: Unit::Time, 1..=100000;
        /// The rate at which one core streams from local memory.
        StreamRate stream_rate: Unit::Rate, 0.01..=10000;
        /// The rate at which one core streams from a slow node.
        SlowRate slow_rate: Unit::Rate, 0.01..=10000;
        /// The rate at which all CPUs of a socket together read from a node of ordinary memory.
        NodeRate node_rate: Unit::Rate, 0.01..=10000;
        /// The rate at which all CPUs together read from a slow node.
        SlowNodeRate slow_node_rate: Unit::Rate, 0.01..=10000;
        /// The rate at which one core copies between nodes (each copied byte counts once).
        CopyRate copy_rate: Unit::Rate, 0.01..=10000;
    }
    zero {
        /// Starting a string instruction or a clearing loop: a call's cost before it reaches full speed.
        ZeroStart start: Unit::Time, 0..=1000000;
        /// The additional time of a clear that does not continue where the last one ended.
        ZeroJump jump: Unit::Time, 0..=1000000;
        /// Zeroing through the caches with string instructions (`rep stos`, `dc zva`), start not counted.
        StringRate string_rate: Unit::Rate, 0.01..=10000;
        /// Zeroing through the caches with ordinary stores.
        StoreRate store_rate: Unit::Rate, 0.01..=10000;
        /// Zeroing around the caches with non-temporal stores.
        BypassRate bypass_rate: Unit::Rate, 0.01..=10000;
        /// Zeroing whole lines around the caches with AMD's `clzero`; 0 if the processor has no such instruction.
        ClzeroRate clzero_rate: Unit::Rate, 0..=10000;
        /// Draining the stores that bypassed the caches, once per call.
        BypassDrain bypass_drain: Unit::Time, 0..=1000000;
        /// Length from which string instructions no longer allocate cache lines; 0 if they always do.
        ElideFrom elide_from: Unit::Bytes, 0..=17592186044416.0;
        /// The factor by which string instructions become faster from that length on.
        ElideGain elide_gain: Unit::Factor, 1..=100;
        /// The loop with which the kernel clears: string instructions (`rep stos`, `dc zva`), ordinary stores,
        /// non-temporal ones of general registers (`movnti`, `stnp`), or `clzero`.
        ZeroLoop loop: Unit::Choice(&["string", "stores", "nontemporal", "clzero"]), 0..=0;
    }
    virtualization {
        /// The additional cost of sending an interrupt in a guest.
        GuestSend send: Unit::Time, 0..=1000000;
        /// The additional time of delivering an interrupt in a guest.
        GuestDelivery delivery: Unit::Time, 0..=1000000;
        /// The additional time of waking a halted CPU in a guest.
        GuestWake wake: Unit::Time, 0..=10000000;
    }
    user {
        /// A load or store that hits the first-level TLB, with the program's own instructions around it.
        UserAccess access: Unit::Time, 0.1..=10000;
    }
    kernel {
        /// Entering and leaving the kernel by a system call.
        SystemCall system_call: Unit::Time, 0..=1000000;
        /// Entering and leaving the kernel by a page fault, generic handling included.
        Fault fault: Unit::Time, 0..=1000000;
        /// Looking up, inserting or removing an area.
        Area area: Unit::Time, 0..=1000000;
        /// Allocating from the per-CPU cache of frames.
        Allocate allocate: Unit::Time, 0..=1000000;
        /// The additional time when the node's allocator must be called.
        Refill refill: Unit::Time, 0..=1000000;
        /// Freeing to the per-CPU cache of frames.
        Free free: Unit::Time, 0..=1000000;
        /// The additional time when frames return to the node's allocator.
        Spill spill: Unit::Time, 0..=1000000;
        /// Finding one mapping of a frame through the reverse map.
        ReverseMap reverse_map: Unit::Time, 0..=1000000;
        /// Taking a frame off the lists of reclaim, or putting it on them.
        List list: Unit::Time, 0..=1000000;
        /// Compressing a page, without the cost of each byte.
        Compress compress: Unit::Time, 0..=10000000;
        /// The additional time of compressing for each byte of the result.
        CompressByte compress_byte: Unit::Time, 0..=10000;
        /// Decompressing a page, without the cost of each byte.
        Decompress decompress: Unit::Time, 0..=10000000;
        /// The additional time of decompressing for each byte of its input.
        DecompressByte decompress_byte: Unit::Time, 0..=10000;
        /// Looking a page up in the page cache.
        CacheLookup cache_lookup: Unit::Time, 0..=1000000;
        /// Starting a read from a device.
        DeviceRead device_read: Unit::Time, 0..=100000000;
        /// Starting a write to a device.
        DeviceWrite device_write: Unit::Time, 0..=100000000;
        /// Transfer rate of a device.
        DeviceRate device_rate: Unit::Rate, 0.001..=1000;
        /// Whether the locks of the allocator, of reclaim's lists and of a file's dirty pages are taken and held with
        /// interrupts off.
        MaskedLocks masked_locks: Unit::Choice(&["no", "yes"]), 0..=0;
        /// Choosing another process and switching to it, without loading its root.
        Schedule schedule: Unit::Time, 0..=1000000;
        /// A factor for all times of this section, which scales the kernel's own code as a whole.
        Scale scale: Unit::Factor, 0..=100;
        /// `mmap`, beyond entry and area; the areas are locked for writing.
        MapCall map: Unit::Time, 0..=1000000;
        /// `munmap`, beyond entry, area and its pages; the areas are locked for writing.
        UnmapCall unmap: Unit::Time, 0..=1000000;
        /// `mprotect`, beyond entry, area and its pages; the areas are locked for writing.
        ProtectCall protect: Unit::Time, 0..=1000000;
        /// `mremap`, beyond entry, area and its pages; the areas are locked for writing.
        RemapCall remap: Unit::Time, 0..=1000000;
        /// `madvise(MADV_DONTNEED)` that removes a page, beyond entry, areas and pages; the areas are locked for reading.
        AdviseCall advise: Unit::Time, 0..=1000000;
        /// Each area of such a call, or each range that it names.
        AdviseArea advise_area: Unit::Time, 0..=1000000;
        /// Removing one page from its table for a call: counters, reverse map, gathering. Its table is locked.
        Zap zap: Unit::Time, 0..=1000000;
        /// Changing the permissions of one page for a call. Its table is locked.
        Change change: Unit::Time, 0..=1000000;
        /// A fault on a new anonymous page, beyond entry, frame and zeroing; the areas are locked for reading.
        FaultAnonymous fault_anonymous: Unit::Time, 0..=1000000;
        /// A fault on a page of a shared file, beyond entry and the page cache; the areas are locked for reading.
        FaultFile fault_file: Unit::Time, 0..=1000000;
        /// A fault that copies a page, beyond entry, frame and copy; the areas are locked for reading.
        FaultCopy fault_copy: Unit::Time, 0..=1000000;
        /// A fault on a swapped page, beyond entry, frame and decompression; the areas are locked for reading.
        FaultSwap fault_swap: Unit::Time, 0..=1000000;
        /// Making or freeing a page of a page table, beyond its frame; the areas are locked.
        Table table: Unit::Time, 0..=1000000;
        /// Putting a page of a file into the page cache, beyond frame and device.
        CacheInsert cache_insert: Unit::Time, 0..=1000000;
        /// Evicting one page, beyond lists and reverse map.
        Evict evict: Unit::Time, 0..=1000000;
    }
    lock {
        /// The factor of all times under these locks, lines included.
        LockScale scale: Unit::Factor, 0..=100;
        /// The lock of a node's lists of pages: how long it is held to add or remove the pages of a call or a batch.
        ListsHold lists_hold: Unit::Time, 0..=1000000;
        /// Lines written under that lock, taken from the CPU that held it last.
        ListsLines lists_lines: Unit::Count, 0..=64;
        /// Pages that a CPU collects before it adds them to the lists.
        ListsBatch lists_batch: Unit::Count, 1..=1024;
        /// Whether a call that removes pages adds the collected ones first. If not, pages that are freed while they are
        /// collected leave the lists again with their batch.
        ListsDrain lists_drain: Unit::Choice(&["no", "yes"]), 0..=0;
        /// The lock of a node's allocator: how long it is held for a frame that a CPU's cache takes or gives back.
        ZoneHold zone_hold: Unit::Time, 0..=1000000;
        /// Lines written under that lock, taken from the CPU that held it last.
        ZoneLines zone_lines: Unit::Count, 0..=64;
        /// The lock of a file's pages in the cache: how long it is held to add or remove one.
        FileHold file_hold: Unit::Time, 0..=1000000;
        /// Lines written under that lock, taken from the CPU that held it last.
        FileLines file_lines: Unit::Count, 0..=64;
    }
    policy {
        /// The protocol that keeps TLBs coherent: the engine's, Linux's queues of function calls, LATR's lazy requests,
        /// Intel's remote action requests, or calls by access bits.
        FlushProtocol flush: Unit::Choice(&["engine", "calls", "latr", "rar", "abis", "fpr"]), 0..=0;
        /// Whether the initiator flushes its own entries while it waits, instead of afterwards (calls, latr).
        FlushConcurrent concurrent: Unit::Choice(&["no", "yes"]), 0..=0;
        /// The most pages that a CPU drops one by one; beyond them it drops all of the space.
        FlushCeiling ceiling: Unit::Count, 1..=65536;
        /// Spaces that have run on more CPUs than this are flushed by broadcasts, on machines that have them.
        BroadcastAbove broadcast_above: Unit::Count, 0..=65536;
        /// The time between two ticks of a CPU, at which it makes lazy requests (latr).
        Tick tick: Unit::Time, 1000..=1000000000;
        /// How many ticks freed frames wait (latr).
        WaitTicks wait_ticks: Unit::Count, 1..=1000;
        /// How many lazy requests of a CPU may wait; further ones are sent as calls (latr).
        LazyStates states: Unit::Count, 1..=4096;
        /// The time of a target's processor for requests, besides the invalidations and lines (rar).
        Microcode microcode: Unit::Time, 0..=1000000;
    }
    contract {
        /// C1, reuse: no access to a frame that has a new owner.
        Clause1 c1: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C2: no lost write.
        Clause2 c2: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C3: no access after the call returned that took the page or right away.
        Clause3 c3: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C4: reads are fresh.
        Clause4 c4: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C5: spaces are isolated.
        Clause5 c5: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C6: no walk of freed tables.
        Clause6 c6: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C7: every flush ends.
        Clause7 c7: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
        /// C8: zeroed memory is zero.
        Clause8 c8: Unit::Choice(&["kept", "needs", "lost"]), 0..=0;
    }
}
