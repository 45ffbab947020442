//! Takes records from all CPUs' buffers in the order of time, and passes them on.
//!
//! Each buffer is ordered, so the oldest record is at the head of one of them. Reading a record costs more than the
//! kernel took to write it. So if a record's program isn't recorded, we count it and read no further, unless it
//! concerns all programs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::sync::Arc;

use perf_event::data;

use super::host::now_ns;
use super::processes::{self, Processes};
use super::records::{self, OpenEvent};
use super::rings::{Entry, Point, RawEvent, Ring};
use super::running::RecordingState;
use super::times::Times;
use super::unwind::{self, Unwinder};
use crate::perf::sample::{Change, Item, LossReason, LostEvents, NameTable, Sample, Value};
use crate::perf::sink::Sink;
use crate::perf::symbols::Symbols;

/// The state that interprets records, and that records change.
pub(super) struct Reader<'r> {
    pub(super) events: &'r mut [OpenEvent],
    pub(super) processes: &'r mut Processes,
    pub(super) names: &'r mut NameTable,
    pub(super) symbols: &'r mut Symbols,
    pub(super) unwinder: &'r mut Unwinder,
    pub(super) times: &'r mut Times,
    pub(super) state: &'r mut RecordingState,
}

impl Reader<'_> {
    /// Takes all records up to a time from the buffers.
    pub(super) fn drain<S: Sink>(
        mut self,
        rings: &mut [Ring],
        points: &[Point],
        until_ns: u64,
        sink: &mut S,
    ) -> io::Result<()> {
        let mut heads = BinaryHeap::new();
        for (index, ring) in rings.iter_mut().enumerate() {
            heads.extend(ring.next_time().map(|time| Reverse((time, index))));
        }
        let before = self.state.seen;
        while let Some(Reverse((time, index))) = heads.pop() {
            if time > until_ns {
                break;
            }
            let ring = &mut rings[index];
            let (cpu, mut done) = (ring.cpu, Ok(()));
            ring.next(points, |entry| done = self.take(entry, time, cpu, sink));
            done?;
            heads.extend(ring.next_time().map(|time| Reverse((time, index))));
        }
        // The last call has no limit, but the sums of processes that have just ended are told after it.
        self.processes.forget(until_ns.min(now_ns()), |forgotten| {
            self.unwinder.forget(&forgotten);
        });
        self.state.recently = self.state.seen - before;
        self.tell_windows(until_ns, sink)
    }

    /// Takes a record that was written at this time on this CPU.
    fn take<S: Sink>(
        &mut self,
        entry: Entry<'_>,
        time_ns: u64,
        cpu: u32,
        sink: &mut S,
    ) -> io::Result<()> {
        self.tell_windows(time_ns.saturating_sub(1), sink)?;
        match entry {
            Entry::Sample(unread) => self.sample(&unread, sink),
            Entry::Lost(count) => {
                self.state.lost += count;
                sink.item(&Item::Lost(LostEvents { why: LossReason::Full, time_ns, cpu, count }))
            }
            Entry::Other(kind, bits, bytes) => {
                match records::change(kind, bits, time_ns, bytes, self.names) {
                    Some(change) => self.change(change, sink),
                    None => Ok(()),
                }
            }
        }
    }

    /// Reads an event, and passes it on if it's kept.
    fn sample<S: Sink>(&mut self, unread: &RawEvent<'_>, sink: &mut S) -> io::Result<()> {
        let is_wanted = self.processes.is_wanted(unread.process());
        if !unread.matters_everywhere() && !is_wanted {
            if let Some(event) = unread.event() {
                self.events[event].seen += 1;
            }
            self.state.saw_elsewhere();
            return Ok(());
        }
        let Some((event, record)) = unread.read() else {
            return Ok(());
        };
        if record.stack_user().is_some()
            || record.callchain().is_some_and(|chain| !chain.is_empty())
        {
            self.processes.catch_up(unread.process(), self.names);
        }
        self.events[event].seen += 1;
        self.state.saw(&record, is_wanted);
        let Some(sample) = self.keep(event, &record) else {
            return Ok(());
        };
        self.state.kept += 1;
        sink.sample(&sample, &self.state.places, self.symbols)
    }

    /// Returns the sample in a record if it's kept, and puts its stack into `places`.
    fn keep(&mut self, event: usize, record: &data::Sample<'_>) -> Option<Sample> {
        let (event, processes) = (&mut self.events[event], &*self.processes);
        let (pid, tid) = (record.pid()?, record.tid()?);
        let is_wanted = processes.is_wanted(pid);
        if !event.everywhere && !is_wanted {
            return None;
        }
        let mut fields = event.format.decode(record.raw()?, |address| self.symbols.kernel(address));
        // Of a program that isn't recorded we need only the name and the call. So we don't read its files to unwind.
        let registers = record.regs_user().map(|registers| &registers.regs[..]);
        let registers = registers.filter(|_| is_wanted);
        let copy = registers.and_then(unwind::stack_pointer);
        let copy = copy.zip(record.stack_user().filter(|stack| !stack.is_empty()));
        if let Some(ranges) = self.unwinder.vectors.ranges(&event.name, &fields, tid, copy) {
            fields.push((self.names.get("ranges"), Value::Text(ranges.into())));
        }
        let user = registers.and_then(|values| {
            self.unwinder.frames(pid, tid, values, record.stack_user(), processes)
        });
        let places = &mut self.state.places;
        places.clear();
        processes.places(pid, record.callchain().unwrap_or_default(), user, places);
        event.kept += 1;
        Some(Sample {
            time_ns: record.time()?,
            cpu: record.cpu()?,
            pid,
            tid,
            comm: match is_wanted {
                true => processes.comm(tid, self.names),
                // No change of it is written, so its threads would be taken for programs.
                false => processes.program(pid, tid, self.names),
            },
            event: event.name.clone(),
            fields,
            stack: Arc::new([]),
        })
    }

    /// Applies a change of a process, and passes it on if the process is recorded.
    fn change<S: Sink>(&mut self, change: Change, sink: &mut S) -> io::Result<()> {
        if !self.processes.take(&change) {
            return Ok(());
        }
        let process = processes::process(&change);
        let comm = self.processes.comm(process, self.names);
        let over = self.processes.has_ended(process);
        self.times.change(&change, &comm, over);
        sink.item(&Item::Change(change))
    }

    /// Writes the windows that closed until this time, after their samples and before later items.
    fn tell_windows<S: Sink>(&mut self, until_ns: u64, sink: &mut S) -> io::Result<()> {
        while let Some(window) = self.state.windows.first().copied()
            && window.end_ns <= until_ns
        {
            sink.item(&Item::Window(window))?;
            self.state.windows.remove(0);
        }
        Ok(())
    }
}
