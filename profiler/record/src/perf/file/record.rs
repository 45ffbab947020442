//! Defines the records of a file.

use serde::{Deserialize, Serialize};

use crate::perf::sample::Item;

/// One record of a file.
///
/// The order of the variants is part of the format. A new variant can be added at the end. Any other change needs a new
/// version.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Record {
    /// The first record: the identifier of the kernel's boot.
    Boot(String),
    /// The next name.
    Name(String),
    /// The next frame.
    Frame(FrameRecord),
    /// The next stack: the numbers of its frames, innermost first.
    Stack(Vec<u32>),
    /// Forgets all stacks. Their numbers start again at 0.
    Forget,
    /// The next kind of event: its name and its fields.
    Event(u32, Vec<u32>),
    Sample(SampleRecord),
    /// Any other item.
    Item(Item),
    /// The last records: the functions of frames, by the frames' numbers.
    Functions(Vec<(u32, String)>),
}

/// A position in code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct FrameRecord {
    pub(super) address: u64,
    pub(super) kernel: bool,
    /// Whether it's a return address, so that the call is before it.
    pub(super) call: bool,
    /// The number of the file's name, from 1. 0 if there is no file.
    pub(super) module: u32,
    /// The offset in the file.
    pub(super) offset: u64,
    /// The process whose code this is. For code in a file, any process that has the file mapped.
    pub(super) pid: u32,
}

/// An event.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SampleRecord {
    pub(super) event: u32,
    /// Nanoseconds since the previous sample.
    pub(super) later_ns: i64,
    pub(super) cpu: u32,
    pub(super) pid: u32,
    pub(super) tid: u32,
    pub(super) comm: u32,
    /// The number of the stack, from 1. 0 if there is none.
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
}

/// Returns the identifier of the kernel's boot. Empty if it can't be read.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}
