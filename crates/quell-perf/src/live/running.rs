//! What changes while a recording runs.

use std::time::Duration;

use perf_event::data;

use super::budget::Budget;
use super::host::{now_ns, spent_ns};
use super::price::Price;
use crate::file::Place;
use crate::sample::Window;
use crate::sink::Progress;

/// What changes while a recording runs.
pub(super) struct Running {
    pub(super) begin_ns: u64,
    pub(super) own_before: u64,
    /// How many CPUs there are beside the recorder's, whose time to start and stop is in the recorder's own.
    other_cpus: usize,
    pub(super) budget: Budget,
    /// Since when the window is open.
    pub(super) open_ns: Option<u64>,
    /// Windows that closed and are not written yet.
    pub(super) windows: Vec<Window>,
    pub(super) recorded_ns: u64,
    /// Records of events that were read, all together and in the last round.
    pub(super) seen: u64,
    pub(super) recently: u64,
    /// Of these, how many came with a stack that was walked, with a copy of one, and are counted all the time.
    walked: u64,
    copied: u64,
    seen_counted: u64,
    pub(super) kept: u64,
    pub(super) lost: u64,
    /// How often recording was started or stopped.
    pub(super) turns: u64,
    /// Events that happened, as of the last look.
    pub(super) counted: u64,
    pub(super) counted_ns: u64,
    pub(super) looked_ns: u64,
    pub(super) told_ns: u64,
    pub(super) places: Vec<Place>,
}

impl Running {
    /// Begins now.
    pub(super) fn new(overhead: f64, own_before: u64, cpus: usize) -> Self {
        let now = now_ns();
        Self {
            begin_ns: now,
            own_before,
            other_cpus: cpus.saturating_sub(1),
            budget: Budget::new(overhead, now),
            open_ns: Some(now),
            windows: Vec::new(),
            recorded_ns: 0,
            seen: 0,
            recently: 0,
            walked: 0,
            copied: 0,
            seen_counted: 0,
            kept: 0,
            lost: 0,
            turns: 0,
            counted: 0,
            counted_ns: now,
            looked_ns: now,
            told_ns: now,
            places: Vec::new(),
        }
    }

    /// Closes the window, if it is open.
    pub(super) fn close(&mut self, end_ns: u64) {
        if let Some(start_ns) = self.open_ns.take() {
            self.recorded_ns += end_ns - start_ns;
            self.windows.push(Window { start_ns, end_ns });
        }
    }

    /// How far it has come, with so many bytes written.
    pub(super) fn progress(&self, now_ns: u64, bytes: u64) -> Progress {
        let open = self.open_ns.map_or(0, |since| now_ns.saturating_sub(since));
        Progress {
            elapsed: Duration::from_nanos(now_ns.saturating_sub(self.begin_ns)),
            recorded: Duration::from_nanos(self.recorded_ns + open),
            kept: self.kept,
            lost: self.lost,
            bytes,
        }
    }

    /// An event was read, of a kind that is counted all the time or not.
    pub(super) fn saw(&mut self, sample: &data::Sample<'_>, counted: bool) {
        self.seen += 1;
        self.seen_counted += u64::from(counted);
        if sample.stack_user().is_some() {
            self.copied += 1;
        } else if sample.callchain().is_some_and(|chain| !chain.is_empty()) {
            self.walked += 1;
        }
    }

    /// CPU time that the kernel used for the events until now. An event that is not counted is taken to happen as often while it is
    /// not recorded as while it is.
    pub(super) fn kernel(&self, price: &Price, now_ns: u64) -> u64 {
        let (walked, copied) = (self.walked as f64, self.copied as f64);
        let plain = (self.seen + self.lost) as f64 - walked - copied;
        let recorded =
            plain * price.plain_ns + walked * price.recorded_ns + copied * price.unwound_ns;
        let recording = self.progress(now_ns, 0).recorded.as_nanos() as f64;
        let closed = (now_ns.saturating_sub(self.begin_ns)) as f64 - recording;
        let uncounted = (self.seen - self.seen_counted) as f64;
        let passed = uncounted * (closed / recording.max(1.0)).max(0.0);
        let turned = self.turns as f64 * price.turn_ns * self.other_cpus as f64;
        let counted = self.counted as f64 * price.counted_ns;
        (recorded + counted + passed * price.open_ns + turned) as u64
    }

    /// CPU time that the recording has cost.
    pub(super) fn spent(&self, price: &Price, now_ns: u64) -> u64 {
        spent_ns() - self.own_before + self.kernel(price, now_ns)
    }

    /// How long to wait for more: less where much came, and longer while little is recorded, because to look costs as much as some
    /// hundred events.
    pub(super) fn pause(&self) -> Duration {
        Duration::from_millis(match (self.open_ns, self.recently) {
            (_, 2000..) => 1,
            (_, 100..) => 5,
            (Some(_), _) => 10,
            (None, _) => 40,
        })
    }
}
