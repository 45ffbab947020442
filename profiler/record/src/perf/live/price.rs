//! Measures the cost of one event on this host: a system call that does nothing, with and without the event.
//!
//! Between calls the caches are filled with other data, as a program does. In a loop of calls alone, an event seems to cost
//! a third of its cost in a program.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event::Builder;
use perf_event::events::Tracepoint;

use super::host::timed;
use super::options::Stack;
use super::rings::of_this_thread;

/// The call that is timed, and its tracepoint.
pub(super) const TRACEPOINT: &str = "syscalls:sys_enter_getppid";

/// Calls in a round. The fastest round counts: rounds are so short that at least one is undisturbed.
const CALLS: u32 = 20;
const ROUNDS: usize = 50;

/// Nanoseconds of CPU time for each event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Counted only.
    pub counted_ns: f64,
    /// Recorded without a stack; the recorder's own time is not included.
    pub plain_ns: f64,
    /// Recorded with a stack.
    pub recorded_ns: f64,
    /// Recorded with a copy of part of the program's stack.
    pub unwound_ns: f64,
}

impl Price {
    /// Measures the prices on this CPU in a few milliseconds. A stack deeper than this thread's costs more.
    ///
    /// # Errors
    ///
    /// The kernel refuses the event.
    pub(super) fn measure(id: u64) -> io::Result<Self> {
        let mut count = Builder::new(Tracepoint::with_id(id))
            .include_kernel()
            .build()?;
        // Every system call gets slower while one is traced: only the rest is the event's.
        let without = round();
        count.enable()?;
        let counted = round();
        drop(count);
        let plain = recorded_round(id, Stack::Absent)?;
        let recorded = recorded_round(id, Stack::Whole)?;
        let unwound = recorded_round(id, Stack::Unwound)?;
        let each = |took: f64| (took - without).max(0.0) / f64::from(CALLS);
        Ok(Self {
            counted_ns: each(counted),
            plain_ns: each(plain),
            recorded_ns: each(recorded),
            unwound_ns: each(unwound),
        })
    }

    /// Returns assumed prices for hosts that refuse the measurement.
    pub(super) fn assumed() -> Self {
        Self {
            counted_ns: 200.0,
            plain_ns: 1000.0,
            recorded_ns: 2000.0,
            unwound_ns: 4000.0,
        }
    }
}

/// Returns the nanoseconds of a round that is recorded.
fn recorded_round(id: u64, stack: Stack) -> io::Result<f64> {
    let mut event = of_this_thread(id, stack).build()?.sampled(1 << 20)?;
    event.as_counter_mut().enable()?;
    Ok(fastest(ROUNDS, || {
        let took = once();
        while event.next_record().is_some() {}
        took
    }))
}

/// Returns the nanoseconds of the fastest round.
fn round() -> f64 {
    fastest(ROUNDS, once)
}

fn fastest(rounds: usize, mut round: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Returns this thread's CPU time for the calls.
fn once() -> f64 {
    timed(|| {
        for _ in 0..CALLS {
            elsewhere();
            let _ = rustix::process::getppid();
        }
    })
}

/// Fills the nearest cache with other memory.
fn elsewhere() {
    /// 64 KB: at least the first-level data cache of the processors that are recorded on.
    static OTHERS: [AtomicU64; 8192] = [const { AtomicU64::new(0) }; 8192];
    for other in OTHERS.iter().step_by(8) {
        other.fetch_add(1, Ordering::Relaxed);
    }
}
