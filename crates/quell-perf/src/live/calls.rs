//! The events of system calls, which cost every call of every program while they are open, recorded or not.
//!
//! As soon as one system call is traced, the kernel sends all of them a longer way, some 50 ns longer. Programs that
//! make a million calls a second would lose more by that than recording may cost. So what it takes is in the account:
//! how many calls all programs make is counted for a moment now and then, and where they take a large part of the
//! budget, these events are closed with a window and opened again with the next one. To close an event takes the kernel
//! some ten milliseconds, in which it waits for all CPUs, and there are some dozens: that is done beside the reading,
//! and no window is opened meanwhile. What counts all calls is there for the moment alone, because it makes each call
//! longer still.

use std::collections::BTreeSet;
use std::io;
use std::thread::{self, JoinHandle};

use perf_event::Counter;

use super::rings::{self, Point, Ring};

/// The tracepoint of all system calls.
pub(super) const ALL: &str = "raw_syscalls:sys_enter";

/// How often all calls are counted for a moment.
const COUNT_NS: u64 = 2_000_000_000;

/// Which part of the budget all calls together may take for being traced without these events being closed between
/// windows.
const PART: f64 = 0.25;

/// The events of system calls on all CPUs.
pub(super) struct Calls {
    points: Vec<Point>,
    tells_lost: bool,
    /// The number of the tracepoint of all calls.
    all: Option<u64>,
    /// Those that are being closed, and since when.
    closing: Option<(JoinHandle<()>, u64)>,
    /// How long that took the last time, or else may take.
    closing_ns: u64,
    /// Since when they are open, and how long they were before.
    open_ns: Option<u64>,
    was_open_ns: u64,
    /// What counts all calls on each CPU, and since when.
    counting: Option<(Vec<Counter>, u64)>,
    /// What counted them before, as it is closed.
    ending: Option<JoinHandle<()>>,
    /// When that began last.
    counted_ns: u64,
    /// How many calls were counted, and in how much time.
    counted: u64,
    within_ns: u64,
}

impl Calls {
    /// Those of these points, which are open.
    pub(super) fn of(points: Vec<Point>, all: Option<u64>) -> Self {
        let any = points.iter().any(|point| point.call);
        Self {
            points,
            tells_lost: rings::tells_lost(),
            all: all.filter(|_| any),
            closing: None,
            closing_ns: 0,
            open_ns: None,
            was_open_ns: 0,
            counting: None,
            ending: None,
            counted_ns: 0,
            counted: 0,
            within_ns: 0,
        }
    }

    /// None of them was closed yet: each may take so long.
    pub(super) fn expect_closing(&mut self, each_ns: f64) {
        let calls = self.points.iter().filter(|point| point.call);
        let tracepoints: BTreeSet<u64> = calls.map(|point| point.id).collect();
        self.closing_ns = (tracepoints.len() as f64 * each_ns) as u64;
    }

    /// What all programs have lost by them until now, in nanoseconds, if each call takes so much longer.
    pub(super) fn ns(&self, now_ns: u64, each_ns: f64) -> f64 {
        let open = self.open_ns.map_or(0, |since| now_ns.saturating_sub(since));
        self.each_ns(each_ns) * (self.was_open_ns + open) as f64
    }

    /// The same of a nanosecond.
    fn each_ns(&self, each_ns: f64) -> f64 {
        self.counted as f64 / self.within_ns.max(1) as f64 * each_ns
    }

    /// How many calls were counted.
    pub(super) fn counted(&self) -> u64 {
        self.counted
    }

    /// What it will cost to close them, because all calls take longer meanwhile: in nanoseconds, if that is too large a
    /// part of so much that may be spent of a nanosecond; else, or if nothing is known of that, they stay open.
    pub(super) fn closing_ns(&self, each_ns: f64, allowed: Option<f64>) -> Option<f64> {
        let cost = self.each_ns(each_ns);
        (cost > PART * allowed?).then_some(cost * self.closing_ns as f64)
    }

    /// Whether they are open, and nobody closes them.
    pub(super) fn are_open(&self) -> bool {
        self.open_ns.is_some() && self.closing.is_none()
    }

    /// The recording begins.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.open_ns = self.all.map(|_| now_ns);
    }

    /// Counts all calls from now until the next time, if it is time for that.
    pub(super) fn look(&mut self, rings: &[Ring], now_ns: u64) -> io::Result<()> {
        if self.counting.is_some() {
            return self.count_no_more(now_ns);
        }
        let next = self.counted_ns + COUNT_NS;
        if let Some(all) = self
            .all
            .filter(|_| self.open_ns.is_some() && now_ns >= next)
        {
            let counts = rings.iter().map(|ring| ring.count_of(all));
            self.counting = Some((counts.collect::<io::Result<_>>()?, now_ns));
            self.counted_ns = now_ns;
        }
        Ok(())
    }

    fn count_no_more(&mut self, now_ns: u64) -> io::Result<()> {
        if let Some((mut counts, since)) = self.counting.take() {
            for count in &mut counts {
                self.counted += count.read()?;
            }
            self.within_ns += now_ns.saturating_sub(since);
            join(self.ending.replace(thread::spawn(move || drop(counts))));
        }
        Ok(())
    }

    /// Begins to close them.
    pub(super) fn close(&mut self, rings: &mut [Ring], now_ns: u64) -> io::Result<()> {
        self.count_no_more(now_ns)?;
        let mut taken = Vec::new();
        for ring in rings {
            taken.extend(ring.take_calls(&self.points)?);
        }
        self.closing = Some((thread::spawn(move || drop(taken)), now_ns));
        Ok(())
    }

    /// Whether they are being closed.
    pub(super) fn is_closing(&self) -> bool {
        let closing = self.closing.as_ref();
        closing.is_some_and(|(thread, _)| !thread.is_finished())
    }

    /// Whether they were closed since the last time that this was asked.
    pub(super) fn have_closed(&mut self, now_ns: u64) -> bool {
        let Some((_, since)) = self.closing.take_if(|(thread, _)| thread.is_finished()) else {
            return false;
        };
        self.closing_ns = now_ns.saturating_sub(since);
        if let Some(since) = self.open_ns.take() {
            self.was_open_ns += now_ns.saturating_sub(since);
        }
        true
    }

    /// Opens those that are not, as of now. While no window is.
    pub(super) fn open(&mut self, rings: &mut [Ring], now_ns: u64) -> io::Result<()> {
        if self.all.is_none() || self.open_ns.is_some() {
            return Ok(());
        }
        let open = |ring: &mut Ring| ring.open_calls(&self.points, self.tells_lost);
        rings.iter_mut().try_for_each(open)?;
        self.open_ns = Some(now_ns);
        Ok(())
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // What is open in the kernel is not left behind.
        join(self.closing.take().map(|(thread, _)| thread));
        join(self.ending.take());
    }
}

/// Waits until it has ended.
fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_cost_too_much_are_closed_even_where_nothing_may_be_spent() {
        let mut calls = Calls::of(Vec::new(), None);
        calls.closing_ns = 1_000_000_000;
        // A million calls a second, of which each takes 50 ns more: a twentieth of one CPU.
        (calls.counted, calls.within_ns) = (1_000_000, 1_000_000_000);
        assert_eq!(calls.closing_ns(50.0, None), None);
        assert_eq!(calls.closing_ns(50.0, Some(0.3)), None);
        let closing = calls
            .closing_ns(50.0, Some(0.1))
            .expect("it is over a quarter");
        assert!((closing - 0.05 * 1e9).abs() < 1.0);
        assert!(calls.closing_ns(50.0, Some(0.0)).is_some());
    }

    #[test]
    fn each_tracepoint_of_a_call_is_closed_once_whatever_is_open_of_it() {
        use super::super::options::{Stack, Stretches};
        let point = |id, call| Point {
            event: 0,
            id,
            stack: Stack::Absent,
            counted: false,
            filter: None,
            stretches: Stretches::Windows,
            call,
        };
        let points = vec![
            point(1, true),
            point(1, true),
            point(2, true),
            point(3, false),
        ];
        let mut calls = Calls::of(points, Some(9));
        calls.expect_closing(40e6);
        assert_eq!(calls.closing_ns, 80_000_000);
    }

    #[test]
    fn what_is_open_and_not_being_closed_can_be_closed() {
        let mut calls = Calls::of(Vec::new(), Some(1));
        calls.all = Some(1);
        assert!(!calls.are_open());
        calls.begin(5);
        assert!(calls.are_open());
        calls.close(&mut [], 7).unwrap();
        assert!(!calls.are_open());
        while calls.is_closing() {
            thread::yield_now();
        }
        assert!(calls.have_closed(9) && !calls.are_open());
        calls.open(&mut [], 11).unwrap();
        assert!(calls.are_open());
    }
}
