//! What an event means for shootdowns, whatever recorded it.
//!
//! Recorders name events as Linux does and their fields as the kernel's formats do; here these become one small
//! enumeration, so that what follows never looks at a name again. Numbers that the kernel prints as signed and
//! recorders hand on as unsigned, or the other way round, are made alike here.

use quell_perf::{Sample, Value};

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
    /// The same outside of the stretches of time in which everything is recorded.
    QueueBetween {
        target: u32,
        function: &'a str,
        work: u64,
    },
    /// There, some of that work was done, on the CPU that it was queued for.
    EndBetween { function: &'a str, work: u64 },
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
        // Without its target it still tells whose it is.
        "between:csd_queue_cpu" => Event::QueueBetween {
            target: cpu("cpu").unwrap_or(u32::MAX),
            function: text("func"),
            work: bits("csd"),
        },
        "between:csd_function_exit" => Event::EndBetween {
            function: text("func"),
            work: bits("csd"),
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

/// The flag of `mmap` that says that it maps no file.
const MAP_ANONYMOUS: u64 = 0x20;

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
