//! Which events are recorded to find out what shootdowns cost: all that a report is made of ([`recorded`]), or the
//! flushes alone, as [`top`](crate::top) adds them up second by second ([`flushes`]).

use crate::perf::live::{Counted, Filter, Stack, Stretches, Wanted};

/// System calls after which other CPUs may have to flush, that give memory back, or that interrupt them for another reason.
const CALLS: [&str; 19] = [
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

/// The event that tells of each interrupt.
const QUEUED: &str = "csd:csd_queue_cpu";

/// Events that are counted all the time only where the kernel lacks [`QUEUED`], because there are many more of these
/// than interrupts. By these counts the figures of a part are then made those of the whole.
const COUNTED: [&str; 2] = ["tlb:tlb_flush", "ipi:ipi_send_cpumask"];

/// The work that the row `TLB` of `/proc/interrupts` counts, in the kernel's language for filters; where flushes take
/// no interrupts there is no such function to name.
const SHOOTDOWN: (&str, &str) = if cfg!(target_arch = "x86_64") {
    (
        "func.function == flush_tlb_func",
        "func.function != flush_tlb_func",
    )
} else {
    ("cpu >= 0", "cpu < 0")
};

/// Interrupts that are no shootdowns, and that the recorder does not cause: it starts and stops events, and has the kernel's code
/// changed for them. Where flushes take no interrupts, these are not told apart.
const OTHERS: &str = if cfg!(target_arch = "x86_64") {
    "func.function != flush_tlb_func && func.function != remote_function && func.function != __perf_event_read \
     && func.function != do_sync_core"
} else {
    "cpu < 0"
};

/// Between windows, every so many-th of these is recorded.
const OTHERS_EVERY: u64 = 16;

/// The event that tells when the work of an interrupt is done, and which of that the row `TLB` counts. Where flushes take
/// no interrupts, kernels have no such function and refuse the filter.
const DONE: (&str, &str) = ("csd:csd_function_exit", "func.function == flush_tlb_func");

/// Between windows, every so many-th of these is recorded on each CPU: enough for a program that interrupts a few hundred times,
/// and a tenth of what it costs to record who sends them where there are many. An odd number: programs often do two things
/// by turns.
const DONE_EVERY: u64 = 7;

/// The events of a recording, where the kernel has them.
pub fn recorded() -> Vec<Wanted> {
    let one = |event: &str, everywhere, stack| Wanted {
        event: event.to_owned(),
        everywhere,
        stack,
        counted: match COUNTED.contains(&event) {
            true => Counted::Without(QUEUED),
            false => Counted::No,
        },
        filter: None,
        stretches: Stretches::Windows,
        every: 1,
    };
    let with = |event, stack, filter: &str, or_all| Wanted {
        filter: Some(Filter {
            text: filter.to_owned(),
            or_all,
        }),
        ..one(event, true, stack)
    };
    // Some kernels do not compare functions; then, in windows, flushes are told from other work by what is recorded of
    // them.
    let (or_all, or_none) = (true, false);
    let mut wanted = vec![
        // The initiator's side says whose doing a flush is; what it does next within the same call needs no second copy
        // of the stack.
        with("tlb:tlb_flush", Stack::Unwound, "reason > 1", or_all),
        with("tlb:tlb_flush", Stack::Absent, "reason <= 1", or_none),
        // Each shootdown interrupt is counted, and as a rule its sender's stack is known, be a window open or not.
        Wanted {
            counted: Counted::Yes,
            ..with(QUEUED, Stack::Whole, SHOOTDOWN.0, or_all)
        },
        // To record every other function's interrupt, too, would cost what windows are closed to save.
        Wanted {
            stretches: Stretches::Between,
            ..with(QUEUED, Stack::Whole, SHOOTDOWN.0, or_none)
        },
        // When some of these were done tells what they cost, in programs that fill so much memory that windows are short,
        // and in those that flush in bursts which are over before one opens.
        Wanted {
            stretches: Stretches::Between,
            every: DONE_EVERY,
            ..with(DONE.0, Stack::Absent, DONE.1, or_none)
        },
        with(QUEUED, Stack::Whole, SHOOTDOWN.1, or_none),
        // So these are counted there, as far as that is paid for, and some are recorded to tell whose they are.
        Wanted {
            stretches: Stretches::Between,
            every: OTHERS_EVERY,
            ..with(QUEUED, Stack::Absent, OTHERS, or_none)
        },
        one("csd:csd_function_entry", true, Stack::Absent),
        one("csd:csd_function_exit", true, Stack::Absent),
        one("ipi:ipi_send_cpumask", true, Stack::Whole),
        // Those without a callback make their target reschedule, and are counted there.
        with("ipi:ipi_send_cpu", Stack::Whole, "callback != 0", or_all),
        one("irq_vectors:call_function_entry", true, Stack::Absent),
        one("irq_vectors:call_function_exit", true, Stack::Absent),
        one(
            "irq_vectors:call_function_single_entry",
            true,
            Stack::Absent,
        ),
        one("irq_vectors:call_function_single_exit", true, Stack::Absent),
        one("irq_vectors:reschedule_entry", true, Stack::Absent),
        one("sched:sched_switch", true, Stack::Absent),
        one("exceptions:page_fault_user", false, Stack::Absent),
        one("mmap_lock:mmap_lock_start_locking", false, Stack::Absent),
        one("mmap_lock:mmap_lock_acquire_returned", false, Stack::Absent),
    ];
    for call in CALLS {
        for end in ["enter", "exit"] {
            wanted.push(one(
                &format!("syscalls:sys_{end}_{call}"),
                false,
                Stack::Absent,
            ));
        }
    }
    wanted
}

/// Flushes of all processes, with no more of their stacks than says which call it was.
pub fn flushes() -> Vec<Wanted> {
    let mut wanted = recorded();
    wanted.retain(|event| {
        let others = ["sched:", "irq_vectors:reschedule"];
        event.everywhere
            && event.stretches == Stretches::Windows
            && !others.iter().any(|other| event.event.starts_with(other))
    });
    for event in &mut wanted {
        if event.stack != Stack::Absent {
            event.stack = Stack::Kernel;
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_filters_are_refused_each_event_is_recorded_once_and_none_between_windows() {
        let mut recorded = recorded();
        recorded.retain(|event| event.filter.as_ref().is_none_or(|filter| filter.or_all));
        assert!(
            recorded
                .iter()
                .all(|event| event.stretches == Stretches::Windows)
        );
        for event in ["tlb:tlb_flush", QUEUED, "ipi:ipi_send_cpu"] {
            let left = recorded.iter().filter(|wanted| wanted.event == event);
            assert_eq!(left.count(), 1, "{event}");
        }
    }

    #[test]
    fn flushes_are_recorded_of_all_processes_and_without_their_stacks_in_the_program() {
        let flushes = flushes();
        assert!(flushes.iter().any(|event| event.event == "tlb:tlb_flush"));
        for event in &flushes {
            assert!(event.everywhere, "{}", event.event);
            assert_eq!(event.stretches, Stretches::Windows, "{}", event.event);
            assert!(
                matches!(event.stack, Stack::Absent | Stack::Kernel),
                "{}",
                event.event
            );
            assert!(
                !event.event.starts_with("syscalls:") && !event.event.starts_with("sched:"),
                "{}",
                event.event
            );
        }
    }
}
