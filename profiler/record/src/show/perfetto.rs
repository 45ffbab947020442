//! Writes a trace for Perfetto and `chrome://tracing`.
//!
//! Its rows are CPUs, with the interrupts that they took and the waits of initiators, and threads, with their calls.
//! Arrows lead from each request to its interrupts. We write the trace while we read the recording, so it needs hardly
//! any memory. Its size is about 200 bytes for each interrupt and each call.

use std::collections::BTreeSet;
use std::io::{self, Write};

use serde_json::json;

use crate::attribute::{Observer, Slice, Stretch};

/// Writes slices as they arrive.
pub struct Perfetto<W: Write> {
    to: W,
    first: Option<u64>,
    cpus: BTreeSet<u32>,
    arrows: u64,
    failed: Option<io::Error>,
    begun: bool,
}

/// The processes of the trace, which group its rows.
const TAKEN: u32 = 1;
const WAITED: u32 = 2;
const CALLS: u32 = 3;
const GAPS: u32 = 4;

impl<W: Write> Perfetto<W> {
    /// Creates a trace that is written to `to`.
    pub fn new(to: W) -> Self {
        Perfetto { to, first: None, cpus: BTreeSet::new(), arrows: 0, failed: None, begun: false }
    }

    fn event(&mut self, event: &serde_json::Value) {
        if self.failed.is_some() {
            return;
        }
        let before = if self.begun { ",\n" } else { "{\"traceEvents\":[\n" };
        self.begun = true;
        if let Err(error) = write!(self.to, "{before}{event}") {
            self.failed = Some(error);
        }
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// If it couldn't be written.
    pub fn finish(mut self) -> io::Result<W> {
        let named = [
            (TAKEN, "interrupts taken, by CPU"),
            (WAITED, "initiators waiting, by CPU"),
            (CALLS, "memory calls, by thread"),
            (GAPS, "not recorded"),
        ];
        for (pid, name) in named {
            self.event(
                &json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}),
            );
        }
        for cpu in std::mem::take(&mut self.cpus) {
            for pid in [TAKEN, WAITED] {
                let name = format!("CPU {cpu}");
                self.event(&json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": cpu, "args": {"name": name}}));
            }
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.to.write_all(b"\n],\"displayTimeUnit\":\"ns\"}\n")?;
        self.to.flush()?;
        Ok(self.to)
    }
}

impl<W: Write> Observer for Perfetto<W> {
    fn gap(&mut self, from_ns: u64, to_ns: u64) {
        let Some(first) = self.first else {
            return;
        };
        let us = (from_ns as f64 - first as f64) / 1e3;
        let took = to_ns.saturating_sub(from_ns) as f64 / 1e3;
        self.event(&json!({
            "ph": "X", "name": "not recorded", "cat": "gap", "ts": us, "dur": took, "pid": GAPS, "tid": 0,
        }));
    }

    fn slice(&mut self, slice: &Slice) {
        let first = *self.first.get_or_insert(slice.start_ns);
        self.cpus.insert(slice.cpu);
        let (pid, tid) = match slice.kind {
            Stretch::Stolen | Stretch::Other => (TAKEN, slice.cpu),
            Stretch::Wait => (WAITED, slice.cpu),
            Stretch::Call => (CALLS, slice.tid),
        };
        // This may be negative, if the slice began before the first one that ended.
        let us = (slice.start_ns as f64 - first as f64) / 1e3;
        let took = slice.end_ns.saturating_sub(slice.start_ns) as f64 / 1e3;
        let kind = match slice.kind {
            Stretch::Stolen => "shootdown",
            Stretch::Other => "other function call",
            Stretch::Wait => "wait",
            Stretch::Call => "call",
        };
        self.event(&json!({
            "ph": "X", "name": *slice.what, "cat": kind, "ts": us, "dur": took, "pid": pid, "tid": tid,
            "args": {"program": *slice.program, "site": slice.site},
        }));
        let (Stretch::Stolen, Some(origin)) = (slice.kind, slice.origin) else {
            return;
        };
        // The arrow begins at the initiator's wait, at the time of sending, and ends at the interrupt.
        let sent_us = (origin.sent_ns as f64 - first as f64) / 1e3;
        self.arrows += 1;
        for (phase, ts, pid, tid) in [("s", sent_us, WAITED, origin.cpu), ("f", us, pid, tid)] {
            // The last pair binds both ends to the slices around them.
            self.event(&json!({
                "name": "request", "cat": "request", "id": self.arrows, "ph": phase, "ts": ts, "pid": pid, "tid": tid,
                "bp": "e",
            }));
        }
    }
}
