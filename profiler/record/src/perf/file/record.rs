//! What stands in a file, one record after the other.

use serde::{Deserialize, Serialize};

use crate::perf::sample::{Change, Count, CpuTime, Host, LossReason, Prices, Statistics, Window};

/// One record. The order of the kinds is the file's: a new kind is added behind the others, and any other change is a
/// new version.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// The first one: which start of the kernel this was recorded under.
    Boot(String),
    /// The next name.
    Name(String),
    /// The next frame.
    Frame(FrameRecord),
    /// The next stack: frames by their numbers, innermost first.
    Stack(Vec<u32>),
    /// All stacks are forgotten; numbers begin anew.
    Forget,
    /// The next kind of event: its name, its fields.
    Event(u32, Vec<u32>),
    Sample(SampleRecord),
    Lost {
        why: LossReason,
        time_ns: u64,
        cpu: u32,
        count: u64,
    },
    Change(Change<u32>),
    Host(Host),
    Statistics(Statistics),
    Window(Window),
    Count(Count),
    Note(String),
    /// Behind everything: functions of frames, by the frames' numbers.
    Functions(Vec<(u32, String)>),
    Prices(Prices),
    CpuTime(CpuTime),
}

/// A place in code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct FrameRecord {
    pub(super) address: u64,
    pub(super) kernel: bool,
    /// Whether the address is one to return to, so that the call lies before it.
    pub(super) call: bool,
    /// The file's name, from 1; 0 if there is none.
    pub(super) module: u32,
    /// The place in the file.
    pub(super) offset: u64,
    /// The process, where code is its own; a process that has the file mapped, else.
    pub(super) pid: u32,
}

/// An event.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SampleRecord {
    pub(super) event: u32,
    /// Nanoseconds since the sample before it.
    pub(super) later_ns: i64,
    pub(super) cpu: u32,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: u32,
    /// From 1; 0 if there is none.
    pub(super) stack: u32,
    pub(super) values: Vec<Datum>,
}

/// The value of a field.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Datum {
    Absent,
    Signed(i64),
    Unsigned(u64),
    Text(u32),
    Cpus(Vec<u32>),
}

/// Which start of the kernel this is; empty if nothing says.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
