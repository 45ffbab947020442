//! What an event means for shootdowns, whatever recorded it.
//!
//! Recorders name events as Linux does and their fields as the kernel's formats do; here these become one small
//! enumeration, so that what follows never looks at a name again. Numbers that the kernel prints as signed and
//! recorders hand on as unsigned, or the other way round, are made alike here.

use crate::perf::{Flushes, Sample, Value};

/// System calls after which other CPUs may have to flush, that give memory back, or that interrupt them for another reason.
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

/// The reasons of `tlb:tlb_flush`, whose numbers are the same since Linux 4.
pub mod reason {
    /// A context switch; nothing was flushed if the event says 0 pages.
    pub const SWITCH: u64 = 0;
    /// On a target: another CPU asked.
    pub const RECEIVED: u64 = 1;
    /// On the initiator: its own entries, of reclaim.
    pub const LOCAL: u64 = 2;
    /// On the initiator: its own entries, of one address space.
    pub const LOCAL_SPACE: u64 = 3;
    /// On the initiator: it asks others. Not every such event interrupts a CPU: lazy ones are filtered out after it.
    pub const SEND: u64 = 4;
}

/// An event, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event<'a> {
    /// `tlb:tlb_flush`; `None` pages means everything.
    Flush { reason: u64, pages: Option<u64> },
    /// `csd:csd_queue_cpu`: work was queued for another CPU.
    Queue {
        target: u32,
        function: &'a str,
        work: u64,
    },
    /// What the kernel added up of a process's flushes, in this call if it is one.
    Summed { call: &'a str, flushes: Flushes },
    /// Interrupts that a process took for flushes of others, and the nanoseconds of their work.
    SummedTaken { interrupts: u64, work_ns: u64 },
    /// How often other work was queued.
    SummedWork { function: &'a str, count: u64 },
    /// `ipi:ipi_send_cpu`; a reschedule interrupt has no callback.
    Send { target: u32, call: bool },
    /// `ipi:ipi_send_cpumask`.
    SendMany { targets: &'a [u32], call: bool },
    /// `csd:csd_function_entry`; work 0 is the initiator's own part.
    Begin { function: &'a str, work: u64 },
    /// `csd:csd_function_exit`.
    End { function: &'a str, work: u64 },
    /// A function-call interrupt began, or ended.
    Interrupt { begin: bool },
    /// A reschedule interrupt began.
    Reschedule,
    /// A system call began: which, and its range if it has one.
    Enter {
        call: &'a str,
        start: u64,
        bytes: u64,
        how: u64,
        /// Whether it maps a file, if that is told.
        file: Option<bool>,
        /// The file's descriptor and where the mapping begins in it, if it maps one that others see.
        maps: Option<(u64, u64)>,
        /// What it gives back if it succeeds.
        gives: Gives,
    },
    /// A system call returned, with this if that is told.
    Exit { call: &'a str, result: Option<u64> },
    /// A thread wants `mmap_lock`, or has it.
    Lock { got: bool },
    /// A user-mode page fault began.
    Fault { address: u64 },
    /// It was handled: the kernel counts those that needed no file, and those that did, when they are.
    Faulted,
    /// The CPU goes on with another thread.
    Switch { next: u32 },
    /// Something else.
    Other,
}

/// Memory that a call gives back: it is empty, or gone, when it is touched again.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Gives {
    /// None.
    Nothing,
    /// This range: start, bytes.
    Range(u64, u64),
    /// What was in this range, in whose place new memory is mapped that can be used at once.
    Over(u64, u64),
    /// What lies between the break before and the one that it returns.
    Break,
    /// As many bytes as it returns, of which it is not told where.
    Somewhere,
    /// These bytes of a file, wherever they are mapped.
    File {
        /// The descriptor.
        file: u64,
        /// The first byte.
        offset: u64,
        /// How many.
        bytes: u64,
    },
}

/// What the sample says.
pub fn of(sample: &Sample) -> Event<'_> {
    let bits = |name: &str| sample.field(name).and_then(bits).unwrap_or(0);
    let text = |name: &str| sample.field(name).and_then(Value::text).unwrap_or("");
    let cpu = |name: &str| sample.number(name).and_then(|cpu| u32::try_from(cpu).ok());
    match &*sample.event {
        "tlb:tlb_flush" => {
            let pages = bits("pages");
            Event::Flush {
                reason: bits("reason"),
                pages: (pages < 1 << 52).then_some(pages),
            }
        }
        "csd:csd_queue_cpu" => match cpu("cpu") {
            Some(target) => Event::Queue {
                target,
                function: text("func"),
                work: bits("csd"),
            },
            None => Event::Other,
        },
        "sums:flushes" => Event::Summed {
            call: text("call"),
            flushes: Flushes::from_counts(|(name, _)| bits(name)),
        },
        "sums:taken" => Event::SummedTaken {
            interrupts: bits("interrupts"),
            work_ns: bits("work_ns"),
        },
        "sums:queued" => Event::SummedWork {
            function: text("func"),
            count: bits("count"),
        },
        "csd:csd_function_entry" => Event::Begin {
            function: text("func"),
            work: bits("csd"),
        },
        "csd:csd_function_exit" => Event::End {
            function: text("func"),
            work: bits("csd"),
        },
        "ipi:ipi_send_cpu" => match cpu("cpu") {
            Some(target) => Event::Send {
                target,
                call: calls(sample),
            },
            None => Event::Other,
        },
        "ipi:ipi_send_cpumask" => match sample.field("cpumask") {
            Some(Value::Cpus(targets)) => Event::SendMany {
                targets,
                call: calls(sample),
            },
            _ => Event::Other,
        },
        "irq_vectors:call_function_entry" | "irq_vectors:call_function_single_entry" => {
            Event::Interrupt { begin: true }
        }
        "irq_vectors:call_function_exit" | "irq_vectors:call_function_single_exit" => {
            Event::Interrupt { begin: false }
        }
        "irq_vectors:reschedule_entry" => Event::Reschedule,
        "mmap_lock:mmap_lock_start_locking" => Event::Lock { got: false },
        "mmap_lock:mmap_lock_acquire_returned" => Event::Lock { got: true },
        "exceptions:page_fault_user" => Event::Fault {
            address: bits("address"),
        },
        "minor-faults" | "major-faults" => Event::Faulted,
        "sched:sched_switch" => Event::Switch {
            next: u32::try_from(bits("next_pid")).unwrap_or(0),
        },
        name => match name.strip_prefix("syscalls:sys_") {
            Some(rest) => call(sample, rest),
            None => Event::Other,
        },
    }
}

/// The flags of `mmap` that say that it maps no file, that it takes the place of what is there, and that others see what
/// is written.
const MAP_ANONYMOUS: u64 = 0x20;
const MAP_FIXED: u64 = 0x10;
const MAP_SHARED: u64 = 0x1;
/// The rights to read and to write: without, memory is only kept free.
const PROT_USED: u64 = 0x3;
/// The flag of `fallocate` that says that the bytes are given back.
const PUNCH_HOLE: u64 = 0x2;
/// `MADV_DONTNEED`, `MADV_REMOVE`, `MADV_FREE`, `MADV_PAGEOUT`, `MADV_DONTNEED_LOCKED`.
const GIVES_BACK: [u64; 5] = [4, 9, 8, 21, 24];

/// What a call with these arguments gives back; `first` finds the first argument that has one of these names.
fn gives(call: &str, first: &dyn Fn(&[&str]) -> u64) -> Gives {
    let (start, bytes) = (first(&["start", "addr"]), first(&["len_in", "len"]));
    match call {
        "madvise" if GIVES_BACK.contains(&first(&["behavior"])) => Gives::Range(start, bytes),
        "munmap" => Gives::Range(start, bytes),
        "mmap" if first(&["flags"]) & MAP_FIXED == 0 => Gives::Nothing,
        "mmap" if first(&["prot"]) & PROT_USED == 0 => Gives::Range(start, bytes),
        "mmap" => Gives::Over(start, bytes),
        "mremap" => match first(&["old_len"]).checked_sub(first(&["new_len"])) {
            Some(less) if less > 0 => Gives::Range(start + first(&["new_len"]), less),
            _ => Gives::Nothing,
        },
        "brk" => Gives::Break,
        "process_madvise" if GIVES_BACK.contains(&first(&["behavior"])) => Gives::Somewhere,
        "fallocate" if first(&["mode"]) & PUNCH_HOLE != 0 => Gives::File {
            file: first(&["fd"]),
            offset: first(&["offset"]),
            bytes: first(&["len"]),
        },
        "ftruncate" => Gives::File {
            file: first(&["fd"]),
            offset: first(&["length"]),
            bytes: u64::MAX,
        },
        _ => Gives::Nothing,
    }
}

fn call<'a>(sample: &'a Sample, name: &'a str) -> Event<'a> {
    let Some(call) = name.strip_prefix("enter_") else {
        return Event::Exit {
            call: name.strip_prefix("exit_").unwrap_or(name),
            result: sample.field("ret").and_then(bits),
        };
    };
    let first = |names: &[&str]| {
        let found = names
            .iter()
            .find_map(|name| sample.field(name).and_then(bits));
        found.unwrap_or(0)
    };
    Event::Enter {
        call,
        start: first(&["start", "addr"]),
        bytes: first(&["len_in", "len", "old_len"]),
        how: first(&["behavior", "prot", "flags"]),
        file: match (call, sample.field("flags").and_then(bits)) {
            ("mmap", Some(flags)) => Some(flags & MAP_ANONYMOUS == 0),
            _ => None,
        },
        maps: (call == "mmap" && first(&["flags"]) & (MAP_ANONYMOUS | MAP_SHARED) == MAP_SHARED)
            .then(|| (first(&["fd"]), first(&["off"]))),
        gives: gives(call, &first),
    }
}

/// Whether an interrupt that was sent carries a function to call; one that carries none makes its target reschedule.
fn calls(sample: &Sample) -> bool {
    match sample.field("callback") {
        Some(Value::Text(text)) => !text.is_empty() && !text.starts_with("0x0"),
        Some(value) => value.number() != Some(0),
        None => true,
    }
}

fn bits(value: &Value) -> Option<u64> {
    match value {
        Value::Signed(number) => Some(number.cast_unsigned()),
        Value::Unsigned(number) => Some(*number),
        Value::Text(_) | Value::Cpus(_) => None,
    }
}

/// Whether work that one CPU queues for another is a flush of its TLB.
pub fn flushes(function: &str) -> bool {
    // With and without an offset, with and without the compiler's suffixes.
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
        for no in [
            "ipi_mb",
            "rcu_exp_handler",
            "remote_function",
            "sched_ttwu_pending",
            "",
        ] {
            assert!(!flushes(no), "{no}");
        }
    }
}
