//! What recordings are made of that are written for a test: processes of one thread, whose flushes interrupt CPU 1.

use std::sync::Arc;

use quell_record::perf::{Frame, Sample, Value};

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

/// A flush that this process asks CPU 1 for from a system call, between windows.
pub(crate) fn asked_between(time_ns: u64, process: (u32, &str), call: &str) -> Sample {
    let frame = Frame {
        address: 1,
        kernel: true,
        symbol: Some(format!("__x64_sys_{call}").into()),
        module: Some("[kernel]".into()),
    };
    Sample {
        stack: [frame].into(),
        ..sample(time_ns, process, "between:csd_queue_cpu", work())
    }
}
