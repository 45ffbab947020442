//! Converts a recorded event into its meaning for shootdowns.
//!
//! All recorders use Linux's names of events and the kernel's names of fields. We convert these to one small
//! enumeration, so that no later code compares names. Some recorders turn signed numbers into unsigned ones or back.
//! Here both become the same.

use crate::perf::{Flushes, Sample, Value};

/// System calls that may interrupt other CPUs, to flush or otherwise, or give memory back.
pub(crate) const CALLS: [&str; 19] = [
    "brk",
    "fallocate",
    "ftruncate",
    "madvise",
    "mbind",
    "membarrier",
    "migrate_pages",
    "mmap",
    "move_pages",
    "mprotect",
    "mremap",
    "msync",
    "munmap",
    "pkey_mprotect",
    "process_madvise",
    "process_mrelease",
    "remap_file_pages",
    "shmdt",
    "userfaultfd",
];

/// The reasons of `tlb:tlb_flush` other than a context switch, which is 0. Their numbers haven't changed since Linux 4.
pub mod reason {
    /// On a target: another CPU requested the flush.
    pub const RECEIVED: u64 = 1;
    /// On the initiator: its own entries, in reclaim.
    pub const LOCAL: u64 = 2;
    /// On the initiator: its own entries of one address space.
    pub const LOCAL_SPACE: u64 = 3;
    /// On the initiator: it requests flushes on others. Not every such event interrupts a CPU, because Linux skips lazy
    /// CPUs afterwards.
    pub const SEND: u64 = 4;
}

/// The meaning of an event for shootdowns.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event<'a> {
    /// `tlb:tlb_flush`. `pages` is `None` if everything is flushed.
    Flush { reason: u64, pages: Option<u64> },
    /// `csd:csd_queue_cpu`: work was queued for another CPU.
    Queue { target: u32, function: &'a str, work: u64 },
    /// The kernel's sum of a process's flushes. `call` is the system call that they were in, or empty. `thread` made
    /// some of them; 0 if that isn't known.
    Summed { call: &'a str, flushes: Flushes, thread: u32 },
    /// The kernel's sum of flush interrupts that a process took, and their work.
    SummedTaken { interrupts: u64, work_ns: u64 },
    /// The kernel's count of other queued work.
    SummedWork { function: &'a str, count: u64 },
    /// `csd:csd_function_entry`.
    Begin { function: &'a str, work: u64 },
    /// `csd:csd_function_exit`.
    End { function: &'a str },
    /// A function-call interrupt began or ended.
    Interrupt { begin: bool },
    /// A system call began, on this range if it has one.
    Enter { call: &'a str, arguments: Arguments },
    /// A system call returned, with this result if it's known.
    Exit { result: Option<u64> },
    /// A thread requests `mmap_lock`, or has acquired it.
    Lock { got: bool },
    /// A user-mode page fault began.
    Fault { address: u64 },
    /// A user-mode page fault was handled. The kernel counts minor and major faults at this moment.
    Faulted,
    /// The CPU switches to another thread.
    Switch,
    /// Any other event.
    Other,
}

/// The arguments of a system call.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Arguments {
    /// The range, if it has one.
    pub start: u64,
    pub bytes: u64,
    /// The advice, the protection or the flags.
    pub how: u64,
    /// Whether it maps a file, if that's known.
    pub file: Option<bool>,
    /// The file's descriptor and the mapping's offset, if it's a shared file mapping.
    pub maps: Option<(u64, u64)>,
    /// The memory that it gives back if it succeeds.
    pub gives: ReleasedRange,
}

/// Memory that a call gives back. A later touch finds zeros, or no mapping at all.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum ReleasedRange {
    /// None.
    #[default]
    Nothing,
    /// This range: start, bytes.
    Range(u64, u64),
    /// The old content of this range. A new mapping replaces it and can be used at once.
    Over(u64, u64),
    /// The memory between the previous break and the returned one, if the break moves down.
    Break,
    /// As many bytes as the call returns, in the ranges of a vector.
    Vector,
    /// These bytes of the file of a descriptor, wherever they are mapped.
    File { file: u64, offset: u64, bytes: u64 },
}

/// Returns the meaning of a sample.
pub fn of(sample: &Sample) -> Event<'_> {
    let bits = |name: &str| sample.field(name).and_then(Value::bits).unwrap_or(0);
    let text = |name: &str| sample.field(name).and_then(Value::text).unwrap_or("");
    let cpu = |name: &str| sample.number(name).and_then(|cpu| u32::try_from(cpu).ok());
    match &*sample.event {
        "tlb:tlb_flush" => {
            let pages = bits("pages");
            Event::Flush { reason: bits("reason"), pages: (pages < 1 << 52).then_some(pages) }
        }
        "csd:csd_queue_cpu" => match cpu("cpu") {
            Some(target) => Event::Queue { target, function: text("func"), work: bits("csd") },
            None => Event::Other,
        },
        "sums:flushes" => Event::Summed {
            call: text("call"),
            flushes: Flushes::from_counts(|(name, _)| bits(name)),
            thread: bits("thread") as u32,
        },
        "sums:taken" => {
            Event::SummedTaken { interrupts: bits("interrupts"), work_ns: bits("work_ns") }
        }
        "sums:queued" => Event::SummedWork { function: text("func"), count: bits("count") },
        // Work 0 is the initiator's own part.
        "csd:csd_function_entry" | "csd:csd_function_exit" if bits("csd") == 0 => Event::Other,
        "csd:csd_function_entry" => Event::Begin { function: text("func"), work: bits("csd") },
        "csd:csd_function_exit" => Event::End { function: text("func") },
        "irq_vectors:call_function_entry" | "irq_vectors:call_function_single_entry" => {
            Event::Interrupt { begin: true }
        }
        "irq_vectors:call_function_exit" | "irq_vectors:call_function_single_exit" => {
            Event::Interrupt { begin: false }
        }
        "mmap_lock:mmap_lock_start_locking" => Event::Lock { got: false },
        "mmap_lock:mmap_lock_acquire_returned" => Event::Lock { got: true },
        "exceptions:page_fault_user" => Event::Fault { address: bits("address") },
        "minor-faults" | "major-faults" => Event::Faulted,
        "sched:sched_switch" => Event::Switch,
        name => match name.strip_prefix("syscalls:sys_") {
            Some(rest) => call(sample, rest),
            None => Event::Other,
        },
    }
}

/// Flags of `mmap`: no file, replace existing mappings, and share writes.
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED: u64 = 0x10;
const MAP_SHARED: u64 = 0x1;
/// The rights to read and write. Without both, `mmap` only reserves addresses.
const PROT_USED: u64 = 0x3;
/// The flag of `fallocate` that gives the bytes back.
const PUNCH_HOLE: u64 = 0x2;
/// The advice to take pages at once, and only once memory is short.
pub(crate) const MADV_DONTNEED: u64 = 4;
pub(crate) const MADV_FREE: u64 = 8;
/// `MADV_DONTNEED`, `MADV_REMOVE`, `MADV_FREE`, `MADV_PAGEOUT`, `MADV_DONTNEED_LOCKED`.
const GIVES_BACK: [u64; 5] = [MADV_DONTNEED, 9, MADV_FREE, 21, 24];

/// Returns the memory that a call with these arguments gives back. `first` returns the first argument with one of the
/// names.
fn gives(call: &str, first: &dyn Fn(&[&str]) -> u64) -> ReleasedRange {
    let (start, bytes) = (first(&["start", "addr"]), first(&["len_in", "len"]));
    let file = first(&["fd"]);
    match call {
        "madvise" if GIVES_BACK.contains(&first(&["behavior"])) => {
            ReleasedRange::Range(start, bytes)
        }
        "munmap" => ReleasedRange::Range(start, bytes),
        "mmap" if first(&["flags"]) & MAP_FIXED == 0 => ReleasedRange::Nothing,
        "mmap" if first(&["prot"]) & PROT_USED == 0 => ReleasedRange::Range(start, bytes),
        "mmap" => ReleasedRange::Over(start, bytes),
        "mremap" => match first(&["old_len"]).checked_sub(first(&["new_len"])) {
            Some(less) if less > 0 => ReleasedRange::Range(start + first(&["new_len"]), less),
            _ => ReleasedRange::Nothing,
        },
        "brk" => ReleasedRange::Break,
        "process_madvise" if GIVES_BACK.contains(&first(&["behavior"])) => ReleasedRange::Vector,
        "fallocate" if first(&["mode"]) & PUNCH_HOLE != 0 => {
            ReleasedRange::File { file, offset: first(&["offset"]), bytes: first(&["len"]) }
        }
        "ftruncate" => ReleasedRange::File { file, offset: first(&["length"]), bytes: u64::MAX },
        _ => ReleasedRange::Nothing,
    }
}

/// Returns the ranges of a call's vector (start, bytes) that the recorder found on the stack.
pub(crate) fn ranges(sample: &Sample) -> impl Iterator<Item = (u64, u64)> {
    let text = sample.field("ranges").and_then(Value::text).unwrap_or("");
    text.split(',').filter_map(|range| {
        let (start, bytes) = range.split_once('+')?;
        Some((start.parse().ok()?, bytes.parse().ok()?))
    })
}

fn call<'a>(sample: &'a Sample, name: &'a str) -> Event<'a> {
    let Some(call) = name.strip_prefix("enter_") else {
        return Event::Exit { result: sample.field("ret").and_then(Value::bits) };
    };
    let first = |names: &[&str]| {
        let found = names.iter().find_map(|name| sample.field(name).and_then(Value::bits));
        found.unwrap_or(0)
    };
    let arguments = Arguments {
        start: first(&["start", "addr"]),
        bytes: first(&["len_in", "len", "old_len"]),
        how: first(&["behavior", "prot", "flags"]),
        file: match (call, sample.field("flags").and_then(Value::bits)) {
            ("mmap", Some(flags)) => Some(flags & MAP_ANONYMOUS == 0),
            _ => None,
        },
        maps: (call == "mmap" && first(&["flags"]) & (MAP_ANONYMOUS | MAP_SHARED) == MAP_SHARED)
            .then(|| (first(&["fd"]), first(&["off"]))),
        gives: gives(call, &first),
    };
    Event::Enter { call, arguments }
}

/// Returns whether this function, queued for another CPU, flushes its TLB.
pub fn flushes(function: &str) -> bool {
    // Recorders print the function with or without an offset and the compiler's suffixes.
    let function = function.split(['+', '.', ' ']).next().unwrap_or(function);
    function.contains("flush_tlb") || function == "do_kernel_range_flush"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_flush_are_known_whatever_their_suffix() {
        for yes in [
            "flush_tlb_func",
            "flush_tlb_func+0x0",
            "do_flush_tlb_all",
            "do_kernel_range_flush",
            "__ipi_flush_tlb_range_asid",
        ] {
            assert!(flushes(yes), "{yes}");
        }
        for no in ["ipi_mb", "rcu_exp_handler", "remote_function", "sched_ttwu_pending", ""] {
            assert!(!flushes(no), "{no}");
        }
    }
}
