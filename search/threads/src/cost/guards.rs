//! Times operations with and without each guard.
//!
//! Each guard has a mutant that omits it ([`quell_mutants::list`]), so this runs in the instrumented copy. There, both
//! variants check at each guard which mutant is on. They alternate on one thread.
//!
//! All caches are warm and there is no other CPU, so every load hits. For a guard's cost to other CPUs, see the machine
//! in software (`quell reproduce --guards`).

use super::operation::{HOLDS, LOOP, TAGGED, flushed_deferral, new_space, ping_pong, unmap};
use super::sample::{Cost, Row, Samples, longest_own, timed};
use crate::{Threads, pulse};
use quell::{AddressSpace, DeferredFlush, Engine, LedgerEntry, PerCpuData, Policy, Stamp};
use quell_mutants::list::{choose, named};
use std::hint::black_box;

/// An engine on a machine of one CPU, with the inputs of the operations.
struct Bench<'b> {
    engine: &'b Engine<'b, Threads<false>>,
    spaces: [AddressSpace<Threads<false>>; 2],
    away: AddressSpace<Threads<false>>,
    deferred_flush: DeferredFlush<Threads<false>>,
    flushed: Stamp,
}

/// The operation to time.
#[derive(Clone, Copy)]
enum Operation {
    Switch,
    Flush,
    Reuse,
    Refill,
    LaterObserver,
    Nmi,
    Resume,
}

impl Bench<'_> {
    /// Creates a bench and runs `body` on it.
    fn with<T>(body: impl FnOnce(&Bench<'_>) -> T) -> T {
        let hw = Threads::new(1, 16, TAGGED);
        let (cpus, ledger) = ([PerCpuData::new()], [(); 4].map(|()| LedgerEntry::new()));
        let engine = Engine::new(&hw, &cpus, &ledger, Policy::ALL).expect(HOLDS);
        engine.cpu_online();
        let away = new_space(&engine, 2);
        let bench = Bench {
            spaces: [0, 1].map(|root| new_space(&engine, root)),
            deferred_flush: DeferredFlush::new(),
            flushed: flushed_deferral(&engine, &away),
            away,
            engine: &engine,
        };
        ping_pong(bench.engine, &bench.spaces);
        body(&bench)
    }

    /// Performs an operation [`LOOP`] times.
    fn time(&self, operation: Operation) -> Cost {
        let Bench { engine, spaces, .. } = self;
        // Each arm has its own loop, into which the operation is inlined.
        timed(LOOP, || match operation {
            Operation::Switch => ping_pong(engine, spaces),
            Operation::Flush => {
                (0..LOOP).for_each(|index| unmap(engine, &self.away, [index % 32].into_iter()))
            }
            Operation::Reuse => (0..LOOP).for_each(|_| {
                self.deferred_flush.defer(self.flushed);
                black_box(engine.flush_before_reuse(black_box(&self.deferred_flush)).is_some());
            }),
            Operation::Refill => (0..LOOP).for_each(|_| {
                engine.flush_before_refill(black_box(&self.deferred_flush), &self.away)
            }),
            Operation::LaterObserver => {
                (0..LOOP).for_each(|_| engine.flush_pending(black_box(&self.away)))
            }
            Operation::Nmi => (0..LOOP).for_each(|_| {
                black_box(engine.this_cpu().user_access_allowed());
            }),
            Operation::Resume => (0..LOOP).for_each(|_| {
                engine.this_cpu().enter_lazy();
                engine.this_cpu().mask_interrupts().switch(Some(&spaces[1]), &spaces[1]);
            }),
        })
    }
}

/// Compares an operation with every guard and the same operation with one guard left out.
fn pair(rounds: usize, operation: Operation, name: &'static str, without: &'static str) -> Row {
    let mut samples = [Samples::default(), Samples::default()];
    let mutant = named(without);
    Bench::with(|bench| {
        for round in 0..rounds {
            let before = pulse::take();
            let guarded = bench.time(operation);
            choose(mutant);
            let bare = bench.time(operation);
            choose(None);
            let pulse = before.max(pulse::take());
            // The first rounds warm caches and predictors.
            if round > 0 {
                for (samples, cost) in samples.iter_mut().zip([guarded, bare]) {
                    samples.0.push((pulse, cost));
                }
            }
        }
    });
    let own = longest_own(&samples);
    let [with, bare] = samples;
    Row {
        name,
        cost: with.cost(own),
        quartiles: with.quartiles(),
        baseline_name: without,
        baseline: bare.cost(own),
        limit_ns: None,
    }
}

/// The guards that a lone CPU reaches.
const GUARDS: [(Operation, &str, &str); 8] = [
    (Operation::Switch, "switch: looks for the space's deferred flushes", "SwitchIgnoresDeferral"),
    (
        Operation::Flush,
        "flush with no target: records in the space that it is deferred",
        "PendingNotRecorded",
    ),
    (Operation::Reuse, "reuse: looks whether the deferred flush was made", "ReuseSkipsFlush"),
    (Operation::Refill, "refill: looks for the frame's deferred flush", "RefillSkipsFlush"),
    (Operation::LaterObserver, "later observer: looks whether others defer", "FlushPendingSkipped"),
    (Operation::Nmi, "NMI handler: checks before it reads user memory", "NmiGuardAlwaysAllows"),
    (Operation::Resume, "back from idle: checks for missed flushes", "LazyResumesUnchecked"),
    (
        Operation::Resume,
        "back from idle: keeps NMI handlers out until it has looked",
        "ResumeLetsNmisIn",
    ),
];

/// Measures all guards.
pub(super) fn measure(rounds: usize) -> Vec<Row> {
    let pair = |(operation, name, without)| pair(rounds, operation, name, without);
    GUARDS.map(pair).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a mutant omits the guard. A reuse that checks counts its finding; one without the check can't.
    #[test]
    #[cfg(quell_mutants)]
    fn mutants_leave_the_guard_out() {
        let reuses = |mutant: Option<&str>| {
            Bench::with(|bench| {
                choose(mutant.and_then(named));
                bench.time(Operation::Reuse);
                choose(None);
                bench.engine.stats().get(quell::Counter::ReusedFree)
            })
        };
        let alone = Threads::<false>::new(1, 16, TAGGED);
        let counts = alone.run(|_| [reuses(None), reuses(Some("ReuseSkipsFlush"))]);
        assert_eq!(*counts[0].as_ref().unwrap(), [LOOP as u64, 0]);
        assert_eq!(measure(3).len(), 8);
    }

    #[test]
    fn every_guard_has_a_mutant() {
        for (_, name, without) in GUARDS {
            assert!(named(without).is_some(), "{name}");
        }
    }
}
