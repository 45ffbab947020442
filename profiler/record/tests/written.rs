//! Builds artificial recordings for tests: processes with one thread, whose flushes interrupt CPU 1.

use std::sync::Arc;

use quell_record::attribute::Attribution;
use quell_record::figures::Range;
use quell_record::perf::{
    Count, CpuTime, Frame, Item, Prices, ReadTime, Sample, Statistics, Value,
};

/// The fields of an event.
pub(crate) type Fields = Vec<(Arc<str>, Value)>;

/// Returns a field with a number.
pub(crate) fn number(name: &str, number: u64) -> (Arc<str>, Value) {
    (name.into(), Value::Unsigned(number))
}

/// Returns the fields of a flush that is queued for CPU 1.
pub(crate) fn work() -> Fields {
    let function = ("func".into(), Value::Text("flush_tlb_func".into()));
    vec![number("cpu", 1), number("csd", 5), function]
}

/// Returns a frame of this function.
pub(crate) fn frame(symbol: &str, module: &str) -> Frame {
    let (symbol, kernel) = (Some(symbol.into()), module == "[kernel]");
    Frame { address: 1, kernel, symbol, module: Some(module.into()) }
}

/// Returns an event of this process without a stack. A target's event is on CPU 1, any other on CPU 0.
pub(crate) fn sample(
    time_ns: u64,
    (pid, comm): (u32, &str),
    event: &str,
    fields: Fields,
) -> Sample {
    Sample {
        time_ns,
        cpu: u32::from(event.starts_with("csd:csd_function")),
        pid,
        tid: pid,
        comm: comm.into(),
        event: event.into(),
        fields,
        stack: [].into(),
    }
}

/// Returns the kernel's sum of a process's flushes in a call.
///
/// There are `count` flushes of one page, with one interrupt each. The initiator waits `waited_ns` for each, and the
/// target works for a tenth of that.
pub(crate) fn summed(
    time_ns: u64,
    process: (u32, &str),
    call: &str,
    count: u64,
    waited_ns: u64,
) -> Sample {
    let fields = vec![
        ("call".into(), Value::Text(call.into())),
        number("flushes", count),
        number("full", 0),
        number("pages", count),
        number("remote", count),
        number("interrupts", count),
        number("waited_ns", count * waited_ns),
        number("work_ns", count * waited_ns / 10),
    ];
    sample(time_ns, process, "sums:flushes", fields)
}

/// Adds an event of this process to a recording.
pub(crate) fn add(
    all: &mut Attribution,
    time_ns: u64,
    process: (u32, &str),
    event: &str,
    fields: Fields,
) {
    all.item(Item::Sample(sample(time_ns, process, event, fields)), &mut ());
}

/// Adds the events of one interrupt. It's queued, and 2 us later a function runs for 2 us.
pub(crate) fn interrupt(mut add: impl FnMut(&str, u64, Fields), at: u64) {
    add("csd:csd_queue_cpu", at, work());
    add("csd:csd_function_entry", at + 2_000, work());
    add("csd:csd_function_exit", at + 4_000, work());
}

/// Returns the count of an event that happened `exact` times and was recorded `seen` times.
pub(crate) fn count(event: &str, exact: u64, seen: u64) -> Item {
    Item::Count(Count { event: event.into(), exact, seen, kept: seen })
}

/// Returns a program's user and kernel time by the kernel's account.
pub(crate) fn ran(comm: &str, user_ns: u64, kernel_ns: u64) -> CpuTime {
    CpuTime { comm: comm.into(), user_ns, kernel_ns, ..CpuTime::default() }
}

/// Returns prices of a host. A page fault costs `fault_ns` to 1.5 times that.
pub(crate) fn prices(fault_ns: f64) -> Item {
    Item::Prices(Prices {
        fault_ns: Range { least: fault_ns, most: fault_ns * 1.5 },
        zero_ns: Range { least: 100.0, most: 200.0 },
        event_ns: [0.0; 3],
    })
}

/// Returns a reading of the kernel's counters that contains none.
pub(crate) fn read(when: ReadTime, time_ns: u64) -> Statistics {
    Statistics { when, time_ns, interrupts: Vec::new(), vmstat: Vec::new(), cpu_ns: Vec::new() }
}
