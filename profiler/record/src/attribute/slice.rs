//! Stretches of time, told as they end: for timelines and traces.

use crate::perf::Sample;

/// A stretch of a CPU's time, for timelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch {
    /// A call.
    Call,
    /// An initiator waits for its targets.
    Wait,
    /// A target flushes: an interrupt.
    Stolen,
    /// Another interrupt that calls a function.
    Other,
}

/// A stretch of time that is over.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// What it was spent on.
    pub kind: Stretch,
    /// On which CPU.
    pub cpu: u32,
    /// In which thread; for an interrupt, the one that was interrupted.
    pub tid: u32,
    /// The program of that thread.
    pub program: &'a str,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// The function or the call.
    pub what: &'a str,
    /// Whose doing it was.
    pub site: Option<usize>,
    /// The request that an interrupt answered.
    pub origin: Option<Origin>,
}

/// Where and when a flush was requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The initiator's CPU.
    pub cpu: u32,
    /// When it interrupted its first target, and began to wait.
    pub sent_ns: u64,
}

/// Told of stretches of time as they end, in the order of their ends.
pub trait Observer {
    /// This one is over.
    fn slice(&mut self, slice: &Slice<'_>);

    /// Nothing was recorded from the one time to the other.
    fn gap(&mut self, _from_ns: u64, _to_ns: u64) {}
}

/// No process.
impl Observer for () {
    fn slice(&mut self, _: &Slice<'_>) {}
}

/// A stretch that ends with this sample.
pub fn of<'a>(
    sample: &Sample,
    program: &'a str,
    kind: Stretch,
    time: (u64, u64),
    what: &'a str,
    site: Option<usize>,
) -> Slice<'a> {
    Slice {
        kind,
        cpu: sample.cpu,
        tid: sample.tid,
        program,
        start_ns: time.0,
        end_ns: time.1,
        what,
        site,
        origin: None,
    }
}
