//! Records the events of each CPU and their times, for timelines.
//!
//! Nothing is recorded unless a run enables it.

use crate::file::Time;
use quell::CpuId;
use quell_vm::contract::timeline::{self, Line, Shape, Unit};
use std::io::{self, Write};

/// An event on a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// The CPU sent interrupts to this many CPUs.
    Send(u64),
    /// An interrupt from that CPU arrived.
    Arrives(usize),
    /// The CPU was in the handler of an interrupt.
    Handler,
    /// The CPU invalidated this many pages. The flag is set if walker caches were invalidated too.
    Pages(u64, bool),
    /// The CPU invalidated a tag.
    Tag(u16),
    /// The CPU invalidated everything.
    All,
    /// The CPU broadcast this many invalidations.
    Broadcast(u64),
    /// The CPU waited for this many broadcasts to complete.
    Completion(u64),
    /// The CPU loaded a root under a tag. The flag is set if entries were kept.
    Root(u16, bool),
    /// The CPU was in the system call with this name.
    Call(&'static str),
    /// The CPU was in a page fault at an address.
    Fault(u64),
    /// The CPU was halted.
    Halted,
    /// The CPU zeroed this many bytes.
    Zero(u64),
    /// The CPU copied this many bytes.
    Copy(u64),
    /// The CPU broke the contract.
    Violation,
}

impl Mark {
    fn name(self) -> String {
        match self {
            Mark::Send(targets) => format!("send interrupt to {targets}"),
            Mark::Arrives(from) => format!("interrupt from CPU {from} arrives"),
            Mark::Handler => "interrupt handler".into(),
            Mark::Pages(pages, false) => format!("invalidate {pages} pages"),
            Mark::Pages(pages, true) => format!("invalidate {pages} pages and tables"),
            Mark::Tag(tag) => format!("invalidate tag {tag}"),
            Mark::All => "invalidate all".into(),
            Mark::Broadcast(operations) => format!("broadcast {operations} invalidations"),
            Mark::Completion(operations) => format!("wait for {operations} broadcasts"),
            Mark::Root(tag, true) => format!("load root, keep tag {tag}"),
            Mark::Root(tag, false) => format!("load root, flush tag {tag}"),
            Mark::Call(call) => call.into(),
            Mark::Fault(address) => format!("fault at {address:#x}"),
            Mark::Halted => "halted".into(),
            Mark::Zero(bytes) => format!("zero {bytes} bytes"),
            Mark::Copy(bytes) => format!("copy {bytes} bytes"),
            Mark::Violation => "VIOLATION".into(),
        }
    }
}

/// An event of a CPU, with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// The CPU.
    pub cpu: usize,
    /// The start of the event.
    pub start: Time,
    /// The end of the event. It's equal to the start for instantaneous events.
    pub end: Time,
    /// The event.
    pub mark: Mark,
}

/// The events of a run, in the order in which they were recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    limit: usize,
    events: Vec<TraceEvent>,
    /// The number of events without room.
    dropped: u64,
}

impl Trace {
    /// Creates a trace that keeps the first `limit` events; 0 keeps none and costs nothing.
    pub fn new(limit: usize) -> Self {
        Trace { limit, ..Trace::default() }
    }

    /// Returns the events.
    pub fn events(&self) -> &[TraceEvent] {
        &self.events
    }

    /// Returns the number of events that were dropped because of the limit.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    #[inline]
    pub(crate) fn span(&mut self, cpu: usize, start: Time, end: Time, mark: Mark) {
        if self.limit > 0 {
            self.push(TraceEvent { cpu, start, end, mark });
        }
    }

    #[inline]
    pub(crate) fn mark(&mut self, cpu: usize, at: Time, mark: Mark) {
        self.span(cpu, at, at, mark);
    }

    #[cold]
    fn push(&mut self, event: TraceEvent) {
        if self.events.len() < self.limit {
            self.events.push(event);
        } else {
            self.dropped += 1;
        }
    }

    /// Writes the trace in the format that Perfetto and `chrome://tracing` open.
    ///
    /// `process` names the whole trace.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write_chrome(&self, process: &str, to: impl Write) -> io::Result<()> {
        let lines = self.events.iter().map(|event| Line {
            cpu: CpuId(event.cpu as u16),
            at: event.start,
            shape: match event.mark {
                Mark::Violation => Shape::Breaks,
                _ => Shape::Lasts(event.end - event.start),
            },
            text: event.mark.name(),
        });
        timeline::write_chrome(process, Unit::Picoseconds, lines, to)
    }
}
