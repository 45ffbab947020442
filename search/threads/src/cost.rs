//! Measures the time that the engine's own code takes.
//!
//! In a real kernel, the hardware dominates an operation's time: a root load, an invalidation, an interrupt. Here these
//! are a few plain stores, a scan of a small table and a flag in another core's cache line. So the rest is the engine.
//! Each operation is timed beside the algorithm that it replaces, interleaved in one run. Medians use only samples
//! during which the measuring thread had its core alone, because a busy hardware thread beside it adds a third or more
//! ([`crate::pulse`]).
//!
//! The guards are timed beside the same operation without the guard ([`guards()`]), which needs the instrumented copy.
//!
//! Real invalidations and interrupts aren't measured (measure the host for those), nor are cold caches. Cycles are
//! those of the time-stamp counter, whose rate doesn't follow the core's clock.

mod alone;
mod guards;
mod operation;
mod sample;
mod two;

use operation::{Machine, TAGGED};
use sample::Progress;
pub use sample::{Cost, Row};
pub use two::{SHOOTDOWN_PAGES, Shootdowns};

/// The results of a measurement.
#[derive(Clone, Debug)]
pub struct Costs {
    /// The operations that one CPU makes alone.
    pub rows: Vec<Row>,
    /// One shootdown of [`SHOOTDOWN_PAGES`] pages between two cores. `None` if there is only one core.
    pub shootdowns: Option<Shootdowns>,
    /// The share of samples behind `rows`, from 0 to 1, that were taken while a neighbour used the core.
    ///
    /// These samples count only if there are too few others ([`crate::pulse`]).
    pub shared_core: f64,
}

impl Costs {
    /// Returns whether asynchronous flushes beat concurrent ones, and concurrent ones serial ones.
    ///
    /// Also returns `true` if no shootdown was measured.
    pub fn is_in_order(&self) -> bool {
        self.shootdowns.is_none_or(|one| {
            one.asynchronous.ns < one.concurrent.ns && one.concurrent.ns < one.serial.ns
        })
    }

    /// Returns whether every operation took less than its limit, and [`Costs::is_in_order`] holds.
    pub fn is_kept(&self) -> bool {
        let below = |row: &Row| row.limit_ns.is_none_or(|limit| row.cost.ns < limit);
        self.rows.iter().all(below) && self.is_in_order()
    }
}

/// Measures every operation `rounds` times. Calls `progress` with the number of finished rounds.
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
    Costs { rows, shootdowns, shared_core }
}

/// Measures operations of one CPU with and without each guard.
///
/// # Panics
/// If a measuring thread panicked, or outside the [instrumented copy](quell_mutants), where no guard can be omitted.
pub fn guards(rounds: usize) -> Vec<Row> {
    on_one_cpu(&Machine::new(1, 16, TAGGED), || guards::measure(rounds))
}

fn on_one_cpu<T: Send>(hw: &Machine, body: impl Fn() -> T + Sync) -> T {
    hw.run(|_| body())
        .pop()
        .expect("one CPU gives one result")
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
