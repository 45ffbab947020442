//! Which events are recorded to find out what shootdowns cost.

use crate::event::CALLS;
use crate::perf::live::{Counted, Filter, Stack, Wanted};

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
        // Each shootdown interrupt is counted, be a window open or not.
        Wanted {
            counted: Counted::Yes,
            ..with(QUEUED, Stack::Whole, SHOOTDOWN.0, or_all)
        },
        with(QUEUED, Stack::Whole, SHOOTDOWN.1, or_none),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_filters_are_refused_each_event_is_recorded_once() {
        let mut recorded = recorded();
        recorded.retain(|event| event.filter.as_ref().is_none_or(|filter| filter.or_all));
        for event in ["tlb:tlb_flush", QUEUED, "ipi:ipi_send_cpu"] {
            let left = recorded.iter().filter(|wanted| wanted.event == event);
            assert_eq!(left.count(), 1, "{event}");
        }
    }
}
