//! Measures the time that the engine's own code takes.
//!
//! In a real kernel, the hardware dominates an operation's time: a root load, an invalidation, an interrupt. Here these
//! are a few plain stores, a scan of a small table and a flag in another core's cache line. So the rest is the engine.
//! Each operation is timed beside the algorithm that it replaces, interleaved in one run. Medians use only samples
//! during which the measuring thread had its core alone, because a busy hardware thread beside it adds a third or more
//! ([`crate::pulse`]).
//!
//! The guards are timed beside the same operation without the guard ([`guards`]), which needs the instrumented copy.
//!
//! Real invalidations and interrupts aren't measured (measure the host for those), nor are cold caches. Cycles are
//! those of the time-stamp counter, whose rate doesn't follow the core's clock.

mod alone;
mod sample;
mod two;

use crate::Threads;
use quell::{
    AddressSpace, Batch, Engine, Features, Frame, Outcome, Page, PageRange, Purpose, Stamp, Tagging,
};
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
    let hw = Machine::new(1, 16, TAGGED);
    on_one_cpu(&hw, || alone::guards(&hw, rounds))
}

type Machine = Threads<false>;

const TAGGED: Features =
    Features { tagging: Tagging::PerCpu { count: 8 }, broadcast: false, full_above: 33 };

/// The reason why `Engine::new` doesn't fail here.
const HOLDS: &str = "the engine runs on such machines";

/// Creates a space without any table.
fn new_space(engine: &Engine<'_, Machine>, root: u64) -> AddressSpace<Machine> {
    // SAFETY: in this machine in software a root is just a number, and every number is valid.
    unsafe { engine.new_space(Frame(root)) }
}

/// Unmaps `pages` of `space` in one batch.
#[inline]
fn unmap<'a>(
    engine: &'a Engine<'a, Machine>,
    space: &'a AddressSpace<Machine>,
    pages: impl Iterator<Item = usize>,
) {
    let mut batch = engine.batch(Purpose::Call);
    for index in pages {
        batch.unmapped(space, PageRange::base(Page(index as u64), 1), Frame(index as u64));
    }
    for frame in batch.finish() {
        std::hint::black_box(frame);
    }
}

/// Unmaps a page of `space`, and defers the flush. Returns its stamp, or `None` if it was made at once.
fn unmap_lazily(engine: &Engine<'_, Machine>, space: &AddressSpace<Machine>) -> Option<Stamp> {
    let mut batch: Batch<'_, &AddressSpace<Machine>> = engine.batch(Purpose::Lazy);
    batch.unmapped(space, PageRange::base(Page(0), 1), Frame(0));
    match batch.finish_deferred() {
        Outcome::Deferred(deferred) => Some(deferred.stamp()),
        Outcome::Flushed(_) => None,
    }
}

fn on_one_cpu<T: Send>(hw: &Machine, body: impl Fn() -> T + Sync) -> T {
    hw.run(|_| body())
        .pop()
        .expect("one CPU gives one result")
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
