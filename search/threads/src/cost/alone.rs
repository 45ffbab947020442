//! Times each operation of a lone CPU beside the algorithm that it replaces.

use std::hint::black_box;
use std::sync::{Mutex, PoisonError};

use crate::pulse;
use quell::{
    AddressSpace, DeferredFlush, Engine, LedgerEntry, PerCpuData, Policy, Stamp, TagPolicy,
};

use super::operation::{HOLDS, LOOP, Machine, flushed_deferral, new_space, ping_pong, unmap};
use super::sample::{Progress, Row, Samples, longest_own, timed};

/// An operation to time. `run` performs it [`LOOP`] times.
struct Contender<'a> {
    name: &'static str,
    run: Box<dyn FnMut() + 'a>,
    samples: Samples,
}

const HIT: &str = "switch that hits its slot";
const DROP: &str = "switch that drops the entries";
const NO_TARGET: &str = "flush with no target: batch, add, finish";
const INVALIDATE: &str = "flush that invalidates here";
const BATCH_OF_32: &str = "unmap a page in a batch of 32, flushed here";
const BATCH_OF_ONE: &str = "in a batch of its own";
const NO_DEFERRAL: &str = "reuse with no deferred flush";
const FLUSHED: &str = "reuse of a frame whose deferred flush others made";
const REFILL: &str = "check before a refill, nothing deferred";
const SPURIOUS: &str = "spurious interrupt";
const LOCK: &str = "a global lock, taken and released";

/// Each operation, the replaced algorithm, and the operation's limit in nanoseconds.
const ROWS: [(&str, &str, Option<f64>); 7] = [
    (HIT, DROP, Some(30.0)),
    (NO_TARGET, INVALIDATE, Some(30.0)),
    (BATCH_OF_32, BATCH_OF_ONE, None),
    (NO_DEFERRAL, LOCK, Some(30.0)),
    (FLUSHED, LOCK, Some(30.0)),
    (REFILL, LOCK, None),
    (SPURIOUS, LOCK, None),
];

/// Measures the operations of one CPU. Also returns the share of samples on a shared core.
pub(crate) fn measure(hw: &Machine, rounds: usize, progress: &Progress<'_>) -> (Vec<Row>, f64) {
    let tags_off = Policy { tags: TagPolicy::Off, ..Policy::ALL };
    let (cpus, ledger) = ([PerCpuData::new()], [(); 4].map(|()| LedgerEntry::new()));
    let (cpus_off, ledger_off) = ([PerCpuData::new()], []);
    let engine = Engine::new(hw, &cpus, &ledger, Policy::ALL).expect(HOLDS);
    let untagged = Engine::new(hw, &cpus_off, &ledger_off, tags_off).expect(HOLDS);
    engine.cpu_online();
    untagged.cpu_online();
    let world = World::new(&engine, &untagged);
    let mut contenders = world.contenders();
    let mut before = pulse::take();
    for round in 0..rounds {
        for contender in &mut contenders {
            let cost = timed(LOOP, &mut contender.run);
            let after = pulse::take();
            // The first rounds warm caches and predictors.
            if round > 0 {
                contender.samples.0.push((before.max(after), cost));
            }
            before = after;
        }
        (progress.lock().unwrap_or_else(PoisonError::into_inner))(round);
    }
    compared(&contenders)
}

/// The operations' inputs: an engine with every mechanism, one without tags, and spaces of both.
struct World<'a> {
    engine: &'a Engine<'a, Machine>,
    untagged: &'a Engine<'a, Machine>,
    spaces: [AddressSpace<Machine>; 2],
    spaces_off: [AddressSpace<Machine>; 2],
    /// A space that runs on no CPU.
    away: AddressSpace<Machine>,
    /// The deferred flush of a frame for which none is deferred.
    clear: DeferredFlush<Machine>,
    /// The deferred flush of a frame for which `stamp`, whose flush was made long ago, is deferred again and again.
    flushed: DeferredFlush<Machine>,
    stamp: Stamp,
    lock: Mutex<u64>,
}

impl<'a> World<'a> {
    fn new(engine: &'a Engine<'a, Machine>, untagged: &'a Engine<'a, Machine>) -> Self {
        let away = new_space(engine, 2);
        Self {
            engine,
            untagged,
            spaces: [0, 1].map(|root| new_space(engine, root)),
            spaces_off: [0, 1].map(|root| new_space(untagged, root)),
            clear: DeferredFlush::new(),
            flushed: DeferredFlush::new(),
            stamp: flushed_deferral(engine, &away),
            away,
            lock: Mutex::new(0),
        }
    }

    /// Returns all operations in [`ROWS`].
    fn contenders(&self) -> Vec<Contender<'_>> {
        let Self { engine, untagged, .. } = *self;
        let [_, here] = &self.spaces;
        let [_, here_untagged] = &self.spaces_off;
        vec![
            contender(HIT, || ping_pong(engine, &self.spaces)),
            contender(DROP, || ping_pong(untagged, &self.spaces_off)),
            each(NO_TARGET, |index| unmap(engine, &self.away, one(index))),
            each(INVALIDATE, |index| unmap(untagged, here_untagged, one(index))),
            contender(BATCH_OF_32, || {
                (0..LOOP / 32).for_each(|_| unmap(engine, here, 0..32));
            }),
            each(BATCH_OF_ONE, |index| unmap(engine, here, one(index))),
            each(NO_DEFERRAL, |_| {
                black_box(engine.flush_before_reuse(black_box(&self.clear)).is_some());
            }),
            each(LOCK, |_| {
                *black_box(&self.lock).lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }),
            each(FLUSHED, |_| {
                self.flushed.defer(self.stamp);
                black_box(engine.flush_before_reuse(black_box(&self.flushed)).is_some());
            }),
            each(REFILL, |_| {
                engine.flush_before_refill(black_box(&self.clear), &self.away);
            }),
            each(SPURIOUS, |_| {
                engine.this_cpu().mask_interrupts().on_interrupt();
            }),
        ]
    }
}

fn contender<'a>(name: &'static str, run: impl FnMut() + 'a) -> Contender<'a> {
    Contender { name, run: Box::new(run), samples: Samples::default() }
}

/// Creates an operation that gets the number of its repetition.
fn each<'a>(name: &'static str, operation: impl Fn(usize) + 'a) -> Contender<'a> {
    contender(name, move || (0..LOOP).for_each(&operation))
}

/// Returns one of the 32 pages that are unmapped in turn.
fn one(index: usize) -> std::iter::Once<usize> {
    std::iter::once(index % 32)
}

/// Compares the [`ROWS`]. Also returns the share of samples on a shared core.
fn compared(contenders: &[Contender<'_>]) -> (Vec<Row>, f64) {
    let samples: Vec<&Samples> = contenders.iter().map(|one| &one.samples).collect();
    let own = longest_own(samples.iter().copied());
    let of = |name| {
        let found = contenders.iter().find(|one| one.name == name);
        &found.expect("what is compared is measured").samples
    };
    let rows = ROWS.map(|(name, baseline_name, limit_ns)| Row {
        name,
        cost: of(name).cost(own),
        quartiles: of(name).quartiles(),
        baseline_name,
        baseline: of(baseline_name).cost(own),
        limit_ns,
    });
    let pulses = || samples.iter().flat_map(|samples| samples.pulses());
    let shared = pulses().filter(|&pulse| pulse > own).count() as f64 / pulses().count() as f64;
    (rows.into(), shared)
}
