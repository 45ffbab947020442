//! Measures the cost of one event on this host. It times a trivial system call with and without the event.
//!
//! Between calls we fill the caches with other data, as a program does. In a loop of calls alone, an event seems to
//! cost only a third as much as in a program.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event::Builder;
use perf_event::events::Tracepoint;

use super::host::timed;
use super::options::Stack;
use super::rings::of_this_thread;

/// The traced system call.
pub(super) const TRACEPOINT: &str = "syscalls:sys_enter_getppid";

/// The number of calls in a round. We use the fastest round, and rounds are so short that at least one is undisturbed.
const CALLS: u32 = 20;
const ROUNDS: usize = 50;

/// The cost of an event, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Counted only.
    pub counted_ns: f64,
    /// Recorded without a stack. The recorder's own time isn't included.
    pub plain_ns: f64,
    /// Recorded with a stack.
    pub recorded_ns: f64,
    /// Recorded with a copy of part of the program's stack.
    pub unwound_ns: f64,
}

impl Price {
    /// Measures the prices on this CPU, in a few milliseconds. A deeper stack than this thread's costs more.
    ///
    /// # Errors
    ///
    /// If the kernel refuses the event.
    pub(super) fn measure(id: u64) -> io::Result<Self> {
        let mut count = Builder::new(Tracepoint::with_id(id))
            .include_kernel()
            .build()?;
        // While a system call is traced, every call is slower. Only the difference is the event's cost.
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

    /// Returns assumed prices, for hosts on which we can't measure.
    pub(super) fn assumed() -> Self {
        Self {
            counted_ns: 200.0,
            plain_ns: 1000.0,
            recorded_ns: 2000.0,
            unwound_ns: 4000.0,
        }
    }
}

/// Returns the time of a recorded round in nanoseconds.
fn recorded_round(id: u64, stack: Stack) -> io::Result<f64> {
    let mut event = of_this_thread(id, stack).build()?.sampled(1 << 20)?;
    event.as_counter_mut().enable()?;
    Ok(fastest(ROUNDS, || {
        let took = once();
        while event.next_record().is_some() {}
        took
    }))
}

/// Returns the time of the fastest round in nanoseconds.
fn round() -> f64 {
    fastest(ROUNDS, once)
}

fn fastest(rounds: usize, mut round: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Returns this thread's CPU time for the calls of a round.
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
    /// 64 KiB: at least the first-level data cache of the processors that we support.
    static OTHERS: [AtomicU64; 8192] = [const { AtomicU64::new(0) }; 8192];
    for other in OTHERS.iter().step_by(8) {
        other.fetch_add(1, Ordering::Relaxed);
    }
}
