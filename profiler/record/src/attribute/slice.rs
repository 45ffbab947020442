//! Stretches of time for timelines and traces, reported as they end.

use std::sync::Arc;

/// A stretch of a CPU's time, for timelines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stretch {
    /// A call.
    Call,
    /// An initiator waits for its targets.
    Wait,
    /// An interrupt in which a target flushes.
    Stolen,
    /// Another interrupt that runs a function.
    Other,
}

/// A stretch of time that has ended.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The kind of work.
    pub kind: Stretch,
    /// The CPU.
    pub cpu: u32,
    /// The thread. For an interrupt, the thread that was interrupted.
    pub tid: u32,
    /// The program of that thread.
    pub program: Arc<str>,
    /// The start.
    pub start_ns: u64,
    /// The end.
    pub end_ns: u64,
    /// The function or the call.
    pub what: Arc<str>,
    /// The site that caused it.
    pub site: Option<usize>,
    /// The request that an interrupt answered.
    pub origin: Option<Origin>,
}

/// The place and time of a flush's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The initiator's CPU.
    pub cpu: u32,
    /// The time of its first interrupt, when it begins to wait.
    pub sent_ns: u64,
}

/// Receives stretches of time as they end, in the order of their ends.
pub trait Observer {
    /// Receives a stretch that has ended.
    fn slice(&mut self, slice: &Slice);

    /// Receives a gap in which nothing was recorded.
    fn gap(&mut self, _from_ns: u64, _to_ns: u64) {}
}

/// Ignores all stretches.
impl Observer for () {
    fn slice(&mut self, _: &Slice) {}
}
