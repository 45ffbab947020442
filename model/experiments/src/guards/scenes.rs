//! Lists the guards to omit, and the runs that measure each.
//!
//! The workloads are those of the headlines, shortened, and two variants: spaces that one CPU changes while others keep
//! them tagged, and unmaps that free page tables.

use quell::Mechanism;

use crate::headlines::LINUX_6_X86;

/// A workload on a machine under a mechanism.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// The mechanism whose fast path the guard slows.
    pub mechanism: Mechanism,
    pub workload: &'static str,
    pub case: &'static str,
    pub machine: &'static str,
    pub cpus: usize,
    /// Parameters of the workload that differ from their defaults.
    pub parameters: &'static [&'static str],
    /// The policy of the kernel without the mechanism.
    pub before: &'static str,
    /// The unit of the event counts, and its number in a run.
    pub each: (&'static str, u64),
    /// The number of seeds, from 1.
    pub seeds: u64,
}

/// A guard in a scene.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    pub scene: &'static Scene,
    /// The mutants that leave it out.
    pub without: &'static [&'static str],
    /// The guard's action.
    pub what: &'static str,
    /// The failure without it.
    pub hole: &'static str,
    /// The clause of the contract that would break.
    pub clause: &'static str,
}

const SWAP: Scene = Scene {
    mechanism: Mechanism::Batch,
    workload: "swap",
    case: "Kunpeng 920, 8 CPUs",
    machine: "kunpeng-920",
    cpus: 8,
    parameters: &["rounds=4"],
    before: "baseline",
    each: ("page", 4 * 256),
    seeds: 1,
};

const SWITCH: Scene = Scene {
    mechanism: Mechanism::Tags,
    workload: "pingpong",
    case: "Skylake, 1 CPU",
    machine: "skylake-laptop",
    cpus: 1,
    parameters: &["switches=400"],
    before: "baseline",
    each: ("switch", 400),
    seeds: 1,
};

/// One CPU changes spaces that others keep tagged.
const SWITCH_CHANGED: Scene = Scene {
    case: "Skylake, 4 CPUs, one drops a page each turn",
    cpus: 4,
    parameters: &["switches=400", "processes=4", "pages=64", "drops=1"],
    each: ("turn of the first CPU", 400),
    seeds: 5,
    ..SWITCH
};

/// The same with deferred flushes of the dropped entries.
const SWITCH_DEFERRED: Scene = Scene {
    mechanism: Mechanism::LazyUnmap,
    case: "Skylake, 4 CPUs, one pages a clean page out each turn",
    parameters: &["switches=400", "processes=4", "pages=64", "drops=1", "clean=yes"],
    before: "S0+S2",
    ..SWITCH_CHANGED
};

const READERS: Scene = Scene {
    mechanism: Mechanism::LazyUnmap,
    workload: "readers",
    case: "Xeon 6430 with CXL, 26 CPUs",
    machine: "xeon-6430-cxl",
    cpus: 26,
    parameters: &["threads=8", "reclaimers=2", "size=7M", "fast=4300K", "slow=10035K", "ahead=204"],
    before: LINUX_6_X86,
    each: ("page", 3 * 1792),
    seeds: 2,
};

/// Broadcasts without slow memory: reclaimed pages are read again.
const READERS_ARM: Scene = Scene {
    case: "Kunpeng 920, 12 CPUs",
    machine: "kunpeng-920",
    cpus: 12,
    parameters: &["processes=2", "threads=6", "size=3584K", "fast=6M", "slow=0", "ahead=96"],
    before: "S0+S2",
    each: ("page", 2 * 896),
    ..READERS
};

const DONTNEED: Scene = Scene {
    mechanism: Mechanism::RemoteFlush,
    workload: "dontneed",
    case: "Haswell, 4 CPUs",
    machine: "haswell-server",
    cpus: 4,
    parameters: &["iterations=300"],
    before: "baseline",
    each: ("call", 300),
    seeds: 1,
};

/// Each call finds a page between the others that it hasn't removed itself.
const DONTNEED_HOLES: Scene = Scene {
    case: "Haswell, 4 CPUs, a hole in each range",
    parameters: &["iterations=300", "pages=2", "stride=2"],
    ..DONTNEED
};

/// Page tables are freed too.
const MUNMAP: Scene = Scene {
    case: "Haswell, 4 CPUs, munmap",
    parameters: &["iterations=300", "unmap=yes"],
    ..DONTNEED
};

/// The others sleep, and each interrupt wakes them: the highest cost of interrupting lazy CPUs.
const MUNMAP_IDLE: Scene = Scene {
    case: "Haswell, 4 CPUs, munmap, others asleep and woken each time",
    parameters: &["iterations=300", "unmap=yes", "idle=yes"],
    ..DONTNEED
};

/// The guards on fast paths that a workload reaches.
pub const GUARDS: &[Guard] = &[
    Guard {
        scene: &SWAP,
        without: &["BroadcastSkipsFence"],
        what: "fence before the tag of a broadcast is read",
        hole: "the invalidation names a tag that a rollover has reassigned (bug 16)",
        clause: "C1",
    },
    Guard {
        scene: &SWAP,
        without: &["PendingNotRecorded"],
        what: "a batch records in the space that its flush is pending",
        hole: "mprotect or munmap finds the entry cleared and returns too early (bugs 3, 5, 19)",
        clause: "C3",
    },
    Guard {
        scene: &SWITCH,
        without: &["SwitchIgnoresDeferral"],
        what: "a switch checks for deferred flushes of the space",
        hole: "an entry whose flush is deferred comes back with the tag",
        clause: "C1",
    },
    Guard {
        scene: &SWITCH_CHANGED,
        without: &["SwitchIgnoresGeneration"],
        what: "a switch flushes a tag whose space was flushed meanwhile",
        hole: "entries that others have flushed come back with the tag",
        clause: "C1",
    },
    Guard {
        scene: &SWITCH_CHANGED,
        without: &["SwitchIgnoresBatch"],
        what: "a switch flushes a tag whose space has a batch outstanding",
        hole: "the batch read which CPUs run the space before this CPU ran it (as bug 8)",
        clause: "C3",
    },
    Guard {
        scene: &SWITCH_DEFERRED,
        without: &["SwitchIgnoresDeferral"],
        what: "a switch flushes a tag whose space has a deferred flush",
        hole: "an entry whose flush is deferred comes back with the tag",
        clause: "C1",
    },
    Guard {
        scene: &READERS,
        without: &["ReuseSkipsFlush"],
        what: "a new owner makes the frame's deferred flush",
        hole: "stale readers see the new owner's data (LUF program 4)",
        clause: "C1",
    },
    Guard {
        scene: &READERS,
        without: &["VmRewritesDeferredEntry"],
        what: "an emptied entry is written again only after its deferred flush",
        hole: "the page that was mapped there before is read (LUF program 1)",
        clause: "C4",
    },
    Guard {
        scene: &READERS,
        without: &["LazyResumesUnchecked"],
        what: "a CPU that was idle checks for missed flushes",
        hole: "it uses entries whose flush it missed",
        clause: "C1",
    },
    Guard {
        scene: &READERS,
        without: &["ResumeLetsNmisIn"],
        what: "a CPU that was idle keeps NMI handlers out until it has caught up",
        hole: "an NMI handler reads through entries whose flush the CPU missed",
        clause: "C1",
    },
    Guard {
        scene: &READERS_ARM,
        without: &["ReuseSkipsFlush"],
        what: "a new owner makes the frame's deferred flush, by broadcast",
        hole: "stale readers see the new owner's data (LUF program 4)",
        clause: "C1",
    },
    Guard {
        scene: &DONTNEED,
        without: &["PendingNotRecorded"],
        what: "a batch records in the space that its flush is pending",
        hole: "a second madvise finds the entry cleared and returns too early (bugs 3, 6)",
        clause: "C3",
    },
    Guard {
        scene: &DONTNEED_HOLES,
        without: &["VmDiscardsUnflushed"],
        what: "madvise checks for pending flushes of others",
        hole: "entries that reclaim has cleared are used after it returned (bugs 4, 6)",
        clause: "C3",
    },
    Guard {
        scene: &MUNMAP,
        without: &["EarlyAckForTables"],
        what: "page tables freed: the initiator waits for the flush, not for its receipt",
        hole: "a walk reads the freed table: Linux's reason against asynchronous flushes",
        clause: "C6",
    },
    Guard {
        scene: &MUNMAP,
        without: &["VmUnmapsUnflushed"],
        what: "munmap checks for pending flushes of others",
        hole: "entries that reclaim has cleared are used after it returned (bugs 6, 19)",
        clause: "C3",
    },
    Guard {
        scene: &MUNMAP,
        without: &["TakeIgnoresLock"],
        what: "the handler checks whether the request changed while it read it",
        hole: "half of one request and half of another is flushed",
        clause: "C6",
    },
    Guard {
        scene: &MUNMAP_IDLE,
        without: &["LazySkippedForTables"],
        what: "page tables freed: idle CPUs are interrupted too",
        hole: "an idle CPU's walker reads the freed table (bug 10)",
        clause: "C6",
    },
];
