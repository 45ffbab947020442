//! What one event costs on this host, from a call that does nothing, with and without it.
//!
//! Between the calls the caches are filled with something else, as a program does: in a loop of nothing but calls an event
//! costs a third of what it costs a program.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event::Builder;
use perf_event::events::Tracepoint;

use super::options::Stack;
use super::rings::of_this_thread;

/// The call that is timed, and its tracepoint.
pub(super) const TRACEPOINT: &str = "syscalls:sys_enter_getppid";

/// Calls in a round; the fastest of the rounds counts. A round is so short that nothing else happens in one of so many.
const CALLS: u32 = 20;
const ROUNDS: usize = 50;

/// Nanoseconds of CPU time for each event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// If it is only counted.
    pub counted_ns: f64,
    /// If it is recorded without a stack; without what the recorder does with the record.
    pub plain_ns: f64,
    /// If it is recorded with a stack.
    pub recorded_ns: f64,
    /// If a part of the program's stack is copied with it.
    pub unwound_ns: f64,
}

impl Price {
    /// Measures it on this CPU, in some milliseconds. The stack is this thread's: a deeper one costs more.
    ///
    /// # Errors
    ///
    /// The kernel refuses the event.
    pub(super) fn measure(id: u64) -> io::Result<Self> {
        let mut count = Builder::new(Tracepoint::with_id(id))
            .include_kernel()
            .build()?;
        // What all calls take more because one is traced is told apart.
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

    /// What is assumed where it cannot be measured.
    pub(super) fn assumed() -> Self {
        Self {
            counted_ns: 200.0,
            plain_ns: 1000.0,
            recorded_ns: 2000.0,
            unwound_ns: 4000.0,
        }
    }
}

/// Nanoseconds for the calls while they are recorded.
fn recorded_round(id: u64, stack: Stack) -> io::Result<f64> {
    let mut event = of_this_thread(id, stack).build()?.sampled(1 << 20)?;
    event.as_counter_mut().enable()?;
    Ok(fastest(ROUNDS, || {
        let took = once();
        while event.next_record().is_some() {}
        took
    }))
}

/// Nanoseconds for the calls, in the fastest of the rounds.
fn round() -> f64 {
    fastest(ROUNDS, once)
}

/// The least of so many rounds.
fn fastest(rounds: usize, mut round: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of this thread's CPU time for the calls.
fn once() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
    };
    let before = now();
    for _ in 0..CALLS {
        elsewhere();
        let _ = rustix::process::getppid();
    }
    now() - before
}

/// Fills the nearest cache with other memory.
fn elsewhere() {
    /// 64 KB: at least the nearest cache of all processors that are recorded on.
    static OTHERS: [AtomicU64; 8192] = [const { AtomicU64::new(0) }; 8192];
    for other in OTHERS.iter().step_by(8) {
        other.fetch_add(1, Ordering::Relaxed);
    }
}
