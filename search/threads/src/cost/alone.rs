//! Times operations of a lone CPU: beside the algorithm that each replaces, and with and without each guard.
//!
//! Each guard has a mutant that omits it ([`quell_mutants::list`]), so guards are timed in the instrumented copy. There,
//! both variants check at each guard which mutant is on. They alternate on one thread.
//!
//! All caches are warm and there is no other CPU, so every load hits. For a guard's cost to other CPUs, see the machine
//! in software (`quell reproduce --guards`).

use super::sample::{Cost, Progress, Row, Samples, longest_own, timed};
use super::{HOLDS, Machine, new_space, unmap, unmap_lazily};
use crate::pulse;
use quell::{
    AddressSpace, DeferredFlush, Engine, LedgerEntry, PerCpuData, Policy, Stamp, TagPolicy,
};
use quell_mutants::list::{choose, named};
use std::hint::black_box;
use std::sync::{Mutex, PoisonError};

/// The number of operations in each timed loop.
const LOOP: usize = 512;

/// An operation to time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    SwitchThatHits,
    SwitchThatDrops,
    FlushWithoutTarget,
    FlushHere,
    BatchOf32,
    BatchOfOne,
    ReuseWithoutDeferral,
    ReuseOfFlushed,
    Refill,
    SpuriousInterrupt,
    Lock,
    LaterObserver,
    Nmi,
    Resume,
}

use Operation::*;

/// An operation and its name in the report.
type Named = (Operation, &'static str);

const LOCK: Named = (Lock, "a global lock, taken and released");

/// Each operation, the replaced algorithm, and the operation's limit in nanoseconds.
const ROWS: [(Named, Named, Option<f64>); 7] = [
    (
        (SwitchThatHits, "switch that hits its slot"),
        (SwitchThatDrops, "switch that drops the entries"),
        Some(30.0),
    ),
    (
        (FlushWithoutTarget, "flush with no target: batch, add, finish"),
        (FlushHere, "flush that invalidates here"),
        Some(30.0),
    ),
    (
        (BatchOf32, "unmap a page in a batch of 32, flushed here"),
        (BatchOfOne, "in a batch of its own"),
        None,
    ),
    ((ReuseWithoutDeferral, "reuse with no deferred flush"), LOCK, Some(30.0)),
    ((ReuseOfFlushed, "reuse of a frame whose deferred flush others made"), LOCK, Some(30.0)),
    ((Refill, "check before a refill, nothing deferred"), LOCK, None),
    ((SpuriousInterrupt, "spurious interrupt"), LOCK, None),
];

/// The guards that a lone CPU reaches: the operation with the guard, its name, and the mutant without it.
const GUARDS: [(Operation, &str, &str); 8] = [
    (SwitchThatHits, "switch: looks for the space's deferred flushes", "SwitchIgnoresDeferral"),
    (
        FlushWithoutTarget,
        "flush with no target: records in the space that it is deferred",
        "PendingNotRecorded",
    ),
    (ReuseOfFlushed, "reuse: looks whether the deferred flush was made", "ReuseSkipsFlush"),
    (Refill, "refill: looks for the frame's deferred flush", "RefillSkipsFlush"),
    (LaterObserver, "later observer: looks whether others defer", "FlushPendingSkipped"),
    (Nmi, "NMI handler: checks before it reads user memory", "NmiGuardAlwaysAllows"),
    (Resume, "back from idle: checks for missed flushes", "LazyResumesUnchecked"),
    (Resume, "back from idle: keeps NMI handlers out until it has looked", "ResumeLetsNmisIn"),
];

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

impl World<'_> {
    /// Calls `body` with a world on this machine.
    fn with<T>(hw: &Machine, body: impl FnOnce(&World<'_>) -> T) -> T {
        let tags_off = Policy { tags: TagPolicy::Off, ..Policy::ALL };
        let (cpus, ledger) = ([PerCpuData::new()], [(); 4].map(|()| LedgerEntry::new()));
        let (cpus_off, ledger_off) = ([PerCpuData::new()], []);
        let engine = Engine::new(hw, &cpus, &ledger, Policy::ALL).expect(HOLDS);
        let untagged = Engine::new(hw, &cpus_off, &ledger_off, tags_off).expect(HOLDS);
        engine.cpu_online();
        untagged.cpu_online();
        let away = new_space(&engine, 2);
        let stamp = unmap_lazily(&engine, &away).expect("an empty ledger has room");
        engine.flush_deferred();
        let world = World {
            spaces: [0, 1].map(|root| new_space(&engine, root)),
            spaces_off: [0, 1].map(|root| new_space(&untagged, root)),
            clear: DeferredFlush::new(),
            flushed: DeferredFlush::new(),
            stamp,
            away,
            lock: Mutex::new(0),
            engine: &engine,
            untagged: &untagged,
        };
        // Later operations need a loaded space.
        world.time(SwitchThatHits);
        world.time(SwitchThatDrops);
        body(&world)
    }

    /// Performs an operation [`LOOP`] times.
    fn time(&self, operation: Operation) -> Cost {
        let Self { engine, untagged, .. } = *self;
        let [_, here] = &self.spaces;
        let [_, here_untagged] = &self.spaces_off;
        let pages = || (0..LOOP).map(|index| index % 32);
        let unmap_each =
            |engine, space| pages().for_each(|page| unmap(engine, space, page..page + 1));
        // Each arm has its own loop, into which the operation is inlined.
        timed(LOOP, || match operation {
            SwitchThatHits => ping_pong(engine, &self.spaces),
            SwitchThatDrops => ping_pong(untagged, &self.spaces_off),
            FlushWithoutTarget => unmap_each(engine, &self.away),
            FlushHere => unmap_each(untagged, here_untagged),
            BatchOf32 => (0..LOOP / 32).for_each(|_| unmap(engine, here, 0..32)),
            BatchOfOne => unmap_each(engine, here),
            ReuseWithoutDeferral => (0..LOOP).for_each(|_| {
                black_box(engine.flush_before_reuse(black_box(&self.clear)).is_some());
            }),
            ReuseOfFlushed => (0..LOOP).for_each(|_| {
                self.flushed.defer(self.stamp);
                black_box(engine.flush_before_reuse(black_box(&self.flushed)).is_some());
            }),
            Refill => (0..LOOP)
                .for_each(|_| engine.flush_before_refill(black_box(&self.clear), &self.away)),
            SpuriousInterrupt => {
                (0..LOOP).for_each(|_| engine.this_cpu().mask_interrupts().on_interrupt())
            }
            Lock => (0..LOOP).for_each(|_| {
                *black_box(&self.lock).lock().unwrap_or_else(PoisonError::into_inner) += 1;
            }),
            LaterObserver => (0..LOOP).for_each(|_| engine.flush_pending(black_box(&self.away))),
            Nmi => (0..LOOP).for_each(|_| {
                black_box(engine.this_cpu().user_access_allowed());
            }),
            Resume => (0..LOOP).for_each(|_| {
                engine.this_cpu().enter_lazy();
                engine.this_cpu().mask_interrupts().switch(Some(here), here);
            }),
        })
    }
}

/// Switches [`LOOP`] times between two spaces.
fn ping_pong(engine: &Engine<'_, Machine>, [one, two]: &[AddressSpace<Machine>; 2]) {
    for _ in 0..LOOP / 2 {
        engine.this_cpu().mask_interrupts().switch(Some(two), one);
        engine.this_cpu().mask_interrupts().switch(Some(one), two);
    }
}

/// Measures the [`ROWS`]. Also returns the share of samples on a shared core.
pub fn measure(hw: &Machine, rounds: usize, progress: &Progress<'_>) -> (Vec<Row>, f64) {
    let mut contenders: Vec<(Operation, Samples)> = Vec::new();
    for (operation, _) in ROWS.iter().flat_map(|(new, old, _)| [*new, *old]) {
        if contenders.iter().all(|(known, _)| *known != operation) {
            contenders.push((operation, Samples::default()));
        }
    }
    World::with(hw, |world| {
        let mut before = pulse::take();
        for round in 0..rounds {
            for (operation, samples) in &mut contenders {
                let cost = world.time(*operation);
                let after = pulse::take();
                // The first rounds warm caches and predictors.
                if round > 0 {
                    samples.0.push((before.max(after), cost));
                }
                before = after;
            }
            (progress.lock().unwrap_or_else(PoisonError::into_inner))(round);
        }
    });
    let own = longest_own(contenders.iter().map(|(_, samples)| samples));
    let of = |operation| {
        let found = contenders.iter().find(|(known, _)| *known == operation);
        &found.expect("what is compared is measured").1
    };
    let rows = ROWS.map(|((operation, name), (baseline, baseline_name), limit_ns)| Row {
        limit_ns,
        ..Row::new((name, of(operation)), (baseline_name, of(baseline)), own)
    });
    let pulses = || contenders.iter().flat_map(|(_, samples)| samples.pulses());
    let shared = pulses().filter(|&pulse| pulse > own).count() as f64 / pulses().count() as f64;
    (rows.into(), shared)
}

/// Measures the [`GUARDS`]: an operation with every guard, and the same operation with one guard left out.
pub fn guards(hw: &Machine, rounds: usize) -> Vec<Row> {
    World::with(hw, |world| {
        let pair = |(operation, name, without)| {
            let mut samples = [Samples::default(), Samples::default()];
            for round in 0..rounds {
                let before = pulse::take();
                let guarded = world.time(operation);
                choose(named(without));
                let bare = world.time(operation);
                choose(None);
                let pulse = before.max(pulse::take());
                if round > 0 {
                    for (samples, cost) in samples.iter_mut().zip([guarded, bare]) {
                        samples.0.push((pulse, cost));
                    }
                }
            }
            let [guarded, bare] = &samples;
            Row::new((name, guarded), (without, bare), longest_own(&samples))
        };
        GUARDS.map(pair).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a mutant omits the guard. A reuse that checks counts its finding; one without the check can't.
    #[test]
    #[cfg(quell_mutants)]
    fn mutants_leave_the_guard_out() {
        let alone = Machine::new(1, 16, crate::cost::TAGGED);
        let reuses = |mutant: Option<&str>| {
            World::with(&alone, |world| {
                choose(mutant.and_then(named));
                world.time(ReuseOfFlushed);
                choose(None);
                world.engine.stats().get(quell::Counter::ReusedFree)
            })
        };
        let counts = alone.run(|_| [reuses(None), reuses(Some("ReuseSkipsFlush"))]);
        assert_eq!(*counts[0].as_ref().unwrap(), [LOOP as u64, 0]);
        assert_eq!(alone.run(|_| guards(&alone, 3))[0].as_ref().unwrap().len(), GUARDS.len());
    }

    #[test]
    fn every_guard_has_a_mutant() {
        for (_, name, without) in GUARDS {
            assert!(named(without).is_some(), "{name}");
        }
    }
}
