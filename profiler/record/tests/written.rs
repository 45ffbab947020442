//! What recordings are made of that are written for a test: processes of one thread, whose flushes interrupt CPU 1.

use std::sync::Arc;

use quell_record::perf::{Sample, Value};

/// The fields of an event.
pub(crate) type Fields = Vec<(Arc<str>, Value)>;

/// A field that is a number.
pub(crate) fn number(name: &str, number: u64) -> (Arc<str>, Value) {
    (name.into(), Value::Unsigned(number))
}

/// The work of a flush that is queued for CPU 1.
pub(crate) fn work() -> Fields {
    let function = ("func".into(), Value::Text("flush_tlb_func".into()));
    vec![number("cpu", 1), number("csd", 5), function]
}

/// An event of this process, without a stack: on CPU 1 if it is the target's, else on CPU 0.
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

/// What the kernel added up of a process's flushes in a call: how many of one page, with an interrupt each, and for how many
/// nanoseconds each was waited, of which the target worked a tenth.
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
