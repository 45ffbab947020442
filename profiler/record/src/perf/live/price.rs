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
        // Other programs on this core may slow down the first rounds.
        let without = without.min(round());
        let each = |took: f64| (took - without) / f64::from(CALLS);
        Ok(Self {
            counted_ns: each(counted),
            plain_ns: each(plain),
            recorded_ns: each(recorded),
            unwound_ns: each(unwound),
        }
        .or_assumed())
    }

    /// Replaces prices that can't be true by the assumed ones: none is free, and more work costs more. On a busy host a
    /// measurement may fail.
    fn or_assumed(self) -> Self {
        let assumed = Self::assumed();
        let or = |price: f64, least: f64, assumed: f64| match price > least {
            true => price,
            false => assumed.max(least),
        };
        let counted_ns = or(self.counted_ns, 0.0, assumed.counted_ns);
        let plain_ns = or(self.plain_ns, counted_ns, assumed.plain_ns);
        let recorded_ns = or(self.recorded_ns, plain_ns, assumed.recorded_ns);
        Self {
            counted_ns,
            plain_ns,
            recorded_ns,
            unwound_ns: or(self.unwound_ns, plain_ns, assumed.unwound_ns),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_that_cannot_be_true_is_replaced() {
        let measured = Price {
            counted_ns: -3.0,
            plain_ns: 700.0,
            recorded_ns: 600.0,
            unwound_ns: 4100.0,
        };
        let expected = Price {
            counted_ns: 200.0,
            plain_ns: 700.0,
            recorded_ns: 2000.0,
            unwound_ns: 4100.0,
        };
        assert_eq!(measured.or_assumed(), expected);
        assert_eq!(expected.or_assumed(), expected);
    }
}
