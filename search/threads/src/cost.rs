//! What the engine itself costs.
//!
//! On a kernel's hardware the price of an operation is mostly the hardware's: a root load, an
//! invalidation, an interrupt. Here those are a few plain stores, a scan of a small table and a flag
//! in another core's cache line, so that what is left is the engine. Each operation is timed beside
//! the algorithm that it replaces, interleaved with it in the same run, and the medians are given: of the
//! samples in which the core was the measuring thread's own, because a busy neighbour on the core's other hardware
//! thread makes everything slower by a third or more ([`crate::pulse`]).
//!
//! The [guards](guards()), which close holes, are timed beside the same operation with the guard left out, in the
//! instrumented copy alone.
//!
//! Not shown: real invalidations and interrupts (measure the host for those), and caches that other
//! work has emptied. Cycles are those of the time-stamp counter, which ticks at one rate whatever the core's
//! clock does.

mod alone;
mod guards;
mod operation;
mod sample;
mod two;

use operation::{Machine, TAGGED};
use sample::Progress;
pub use sample::{Cost, Row};
pub use two::{SHOOTDOWN_PAGES, Shootdowns};

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Costs {
    /// Operations of one CPU.
    pub rows: Vec<Row>,
    /// One shootdown of [`SHOOTDOWN_PAGES`] pages between two cores; `None` where there is only one.
    pub shootdowns: Option<Shootdowns>,
    /// In what part of the samples behind `rows` the core was shared with a neighbour, 0 to 1; those count only where
    /// too few others are ([`crate::pulse`]).
    pub shared_core: f64,
}

impl Costs {
    /// Returns whether an asynchronous flush was faster than a concurrent one, and that than a serial one; true where
    /// none was measured.
    pub fn is_in_order(&self) -> bool {
        self.shootdowns.is_none_or(|one| {
            one.asynchronous.ns < one.concurrent.ns && one.concurrent.ns < one.serial.ns
        })
    }

    /// Returns whether every operation stayed below its limit, and the flushes are in their order.
    pub fn is_kept(&self) -> bool {
        let below = |row: &Row| row.limit_ns.is_none_or(|limit| row.cost.ns < limit);
        self.rows.iter().all(below) && self.is_in_order()
    }
}

/// Measures everything, `rounds` times over; `progress` hears how many rounds are done.
///
/// # Panics
/// If a measuring thread panicked.
pub fn measure(rounds: usize, progress: &mut (dyn FnMut(usize) + Send)) -> Costs {
    let hw = Machine::new(1, 16, TAGGED);
    let progress = Progress::new(progress);
    let (mut rows, shared_core) = on_one_cpu(&hw, || alone::measure(&hw, rounds, &progress));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let remote = (cores > 1).then(|| two::measure(rounds, &progress));
    let shootdowns = remote.map(|(shootdowns, flush_before_reuse)| {
        rows.push(flush_before_reuse);
        shootdowns
    });
    Costs {
        rows,
        shootdowns,
        shared_core,
    }
}

/// Operations of one CPU beside the same with a guard left out: what closing a hole costs. Only in the [instrumented
/// copy](quell_mutants) is anything left out.
///
/// # Panics
/// If a measuring thread panicked, and outside of the copy.
pub fn guards(rounds: usize) -> Vec<Row> {
    on_one_cpu(&Machine::new(1, 16, TAGGED), || guards::measure(rounds))
}

fn on_one_cpu<T: Send>(hw: &Machine, body: impl Fn() -> T + Sync) -> T {
    hw.run(|_| body())
        .pop()
        .expect("one CPU gives one result")
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
