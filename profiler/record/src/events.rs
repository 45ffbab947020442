//! Lists the events that a recording needs to find the cost of shootdowns.

use crate::event::CALLS;
use crate::perf::live::{CountMode, EventRequest, Filter, Stack};

/// The event of each queued piece of work. A shootdown has one for each target.
const QUEUED: &str = "csd:csd_queue_cpu";

/// The event that we count all the time only if the kernel lacks [`QUEUED`]. There are many more flushes than
/// interrupts. The count lets us scale the figures of the recorded part up to the whole.
const COUNTED: &str = "tlb:tlb_flush";

/// Filters that select shootdowns and everything else, in the kernel's filter language. The row `TLB` of
/// `/proc/interrupts` counts the same work. Arm flushes without interrupts and has no such function, so there the first
/// filter selects everything.
const SHOOTDOWN: (&str, &str) = if cfg!(target_arch = "x86_64") {
    ("func.function == flush_tlb_func", "func.function != flush_tlb_func")
} else {
    ("cpu >= 0", "cpu < 0")
};

/// Returns the events of a recording. A kernel may lack some of them.
pub fn recorded() -> Vec<EventRequest> {
    let one = |event: &str, everywhere, stack| EventRequest {
        event: event.to_owned(),
        everywhere,
        stack,
        counted: if event == COUNTED { CountMode::Without(QUEUED) } else { CountMode::No },
        filter: None,
    };
    let with = |event, stack, filter: &str, or_all| EventRequest {
        filter: Some(Filter { text: filter.to_owned(), or_all }),
        ..one(event, true, stack)
    };
    // Some kernels can't compare functions in a filter. Then we record all work in windows, and distinguish flushes
    // from other work by the recorded function.
    let (or_all, or_none) = (true, false);
    let mut wanted = vec![
        // The initiator's stack identifies the cause of a flush. Later events in the same call don't need another copy.
        with("tlb:tlb_flush", Stack::Unwound, "reason > 1", or_all),
        with("tlb:tlb_flush", Stack::Absent, "reason <= 1", or_none),
        // Each shootdown interrupt is counted, whether a window is open or not.
        EventRequest { counted: CountMode::Yes, ..with(QUEUED, Stack::Whole, SHOOTDOWN.0, or_all) },
        with(QUEUED, Stack::Whole, SHOOTDOWN.1, or_none),
        one("csd:csd_function_entry", true, Stack::Absent),
        one("csd:csd_function_exit", true, Stack::Absent),
        one("irq_vectors:call_function_entry", true, Stack::Absent),
        one("irq_vectors:call_function_exit", true, Stack::Absent),
        one("irq_vectors:call_function_single_entry", true, Stack::Absent),
        one("irq_vectors:call_function_single_exit", true, Stack::Absent),
        one("sched:sched_switch", true, Stack::Absent),
        one("exceptions:page_fault_user", false, Stack::Absent),
        one("mmap_lock:mmap_lock_start_locking", false, Stack::Absent),
        one("mmap_lock:mmap_lock_acquire_returned", false, Stack::Absent),
    ];
    for call in CALLS {
        for end in ["enter", "exit"] {
            wanted.push(one(&format!("syscalls:sys_{end}_{call}"), false, Stack::Absent));
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
        for event in [COUNTED, QUEUED] {
            let left = recorded.iter().filter(|wanted| wanted.event == event);
            assert_eq!(left.count(), 1, "{event}");
        }
    }
}
