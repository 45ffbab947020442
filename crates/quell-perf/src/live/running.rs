//! What changes while a recording runs.

use std::time::Duration;

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
    pub(super) budget: Budget,
    /// Since when the window is open.
    pub(super) open_ns: Option<u64>,
    /// Windows that closed and are not written yet.
    pub(super) windows: Vec<Window>,
    pub(super) recorded_ns: u64,
    /// Records of events that were read, all together and in the last round.
    pub(super) seen: u64,
    pub(super) recently: u64,
    /// Of these, how many came with a copy of the stack.
    pub(super) copied: u64,
    pub(super) kept: u64,
    pub(super) lost: u64,
    /// Events that happened, as of the last look.
    pub(super) counted: u64,
    pub(super) counted_ns: u64,
    pub(super) looked_ns: u64,
    pub(super) told_ns: u64,
    pub(super) places: Vec<Place>,
}

impl Running {
    /// Begins now.
    pub(super) fn new(overhead: f64, own_before: u64) -> Self {
        let now = now_ns();
        Self {
            begin_ns: now,
            own_before,
            budget: Budget::new(overhead, now),
            open_ns: Some(now),
            windows: Vec::new(),
            recorded_ns: 0,
            seen: 0,
            recently: 0,
            copied: 0,
            kept: 0,
            lost: 0,
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

    /// CPU time that the kernel used for the events.
    pub(super) fn kernel(&self, price: &Price) -> u64 {
        let recorded = self.seen + self.lost;
        let only_counted = self.counted.saturating_sub(recorded) as f64;
        let plain = (recorded - self.copied) as f64;
        let ns = plain * price.recorded_ns + self.copied as f64 * price.unwound_ns;
        (ns + only_counted * price.counted_ns) as u64
    }

    /// CPU time that the recording has cost.
    pub(super) fn spent(&self, price: &Price) -> u64 {
        spent_ns() - self.own_before + self.kernel(price)
    }

    /// How long to wait for more: less where much came.
    pub(super) fn pause(&self) -> Duration {
        match self.recently {
            0..100 => Duration::from_millis(10),
            100..2000 => Duration::from_millis(5),
            _ => Duration::from_millis(1),
        }
    }
}
