//! The state of a running recording.

use std::time::Duration;

use perf_event::data;

use super::budget::{Budget, Phase};
use super::host::now_ns;
use crate::attribute::site::Events;
use crate::perf::file::Place;
use crate::perf::sample::Window;

/// The assumed cost of an event in nanoseconds of a program's CPU time: without a stack, with a walked stack, and with a
/// copy of part of the stack.
///
/// They decide only until the cost is [measured](super::cost), or where it can't be. Timing one event at the start gave
/// results that differed by a factor of two from run to run, and no better ones.
pub(super) const EVENT_NS: [f64; 3] = [700.0, 1500.0, 3500.0];

/// The assumed cost of an event that is only counted.
const COUNTED_NS: f64 = 200.0;

#[derive(Default)]
pub(super) struct RecordingState {
    pub(super) begin_ns: u64,
    pub(super) own_before: u64,
    pub(super) budget: Budget,
    pub(super) phase: Phase,
    /// The time at which the window opened, if one is open.
    pub(super) open_ns: Option<u64>,
    /// Closed windows that aren't written yet.
    pub(super) windows: Vec<Window>,
    pub(super) recorded_ns: u64,
    /// The number of windows that closed.
    pub(super) closed: u64,
    /// Events read so far, and in the last round.
    pub(super) seen: u64,
    pub(super) recently: u64,
    /// Events of all processes, and of the recorded ones. Their cost depends on their stacks.
    events: Events,
    hitting: Events,
    pub(super) kept: u64,
    pub(super) lost: u64,
    /// The number of changes of the phase.
    pub(super) turns: u64,
    /// Events that the kernel had counted at the last reading.
    pub(super) counted: u64,
    pub(super) counted_ns: u64,
    pub(super) looked_ns: u64,
    /// The CPU time of the machine and of the recorded processes at the last reading.
    pub(super) busy_ns: u64,
    pub(super) used_ns: u64,
    pub(super) told_ns: u64,
    pub(super) places: Vec<Place>,
}

impl RecordingState {
    /// Starts a recording now.
    pub(super) fn new(overhead: f64, own_before: u64) -> Self {
        let now = now_ns();
        Self {
            begin_ns: now,
            own_before,
            budget: Budget::new(overhead, now),
            open_ns: Some(now),
            counted_ns: now,
            looked_ns: now,
            told_ns: now,
            ..Self::default()
        }
    }

    /// Makes the next round read the CPU times. A new price counts for all that was recorded so far, and must be compared
    /// with all the time that earned it.
    pub(super) fn look_again(&mut self) {
        self.looked_ns = 0;
    }

    /// Closes the window if one is open.
    pub(super) fn close(&mut self, end_ns: u64) {
        if let Some(start_ns) = self.open_ns.take() {
            self.recorded_ns += end_ns - start_ns;
            self.closed += 1;
            self.windows.push(Window { start_ns, end_ns });
        }
    }

    /// Counts an event that was read. `is_wanted` is set if its process is recorded.
    pub(super) fn saw(&mut self, sample: &data::Sample<'_>, is_wanted: bool) {
        self.seen += 1;
        let kind = if sample.stack_user().is_some() {
            2
        } else {
            usize::from(sample.callchain().is_some_and(|chain| !chain.is_empty()))
        };
        self.events.count(kind);
        if is_wanted {
            self.hitting.count(kind);
        }
    }

    /// Counts an event without a stack, in a process that isn't recorded.
    pub(super) fn saw_elsewhere(&mut self) {
        self.seen += 1;
        self.events.count(0);
    }

    /// Estimates the kernel's CPU time for events until now, from their number.
    ///
    /// Returns the time of all processes, and of the recorded ones. We don't know the processes of lost and counted
    /// events, so both times include these.
    pub(super) fn kernel(&self) -> (f64, f64) {
        let lost = self.lost as f64 * EVENT_NS[0];
        let counted = self.counted as f64 * COUNTED_NS;
        let of = |events: Events| events.ns(EVENT_NS) + lost + counted;
        (of(self.events), of(self.hitting))
    }

    /// Returns the pause before the next reading. A reading costs as much as some hundred events, so we read less often
    /// if few events come.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_millis(match (self.open_ns, self.recently) {
            (_, 2000..) => 1,
            (_, 100..) => 5,
            (Some(_), _) => 10,
            (None, _) => 100,
        })
    }
}
