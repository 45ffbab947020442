//! What guards cost: an operation beside the same one with the guard compiled away.
//!
//! Each guard has a mutant that leaves it out ([`quell::mutant`]). The machine of the second run answers
//! for that one with a constant `true`, so that the compiler leaves no trace of the guard. Both run by
//! turns on one thread.
//!
//! All caches are warm and nobody else is there: a load here is one that hits. What a guard makes
//! other CPUs do, the machine in software shows (`quell reproduce --guards`).

use super::{Cost, LOOP, Row, Samples, TAGGED, longest_own, paid_debt, ping_pong, timed, unmap};
use crate::machine::NOTHING;
use crate::{Threads, pulse};
use quell::mutant::Mutant;
use quell::{AddressSpace, Engine, Epoch, Frame, PerCpu, Policy, Residue, Stamp};
use std::hint::black_box;

/// An engine on a machine of one CPU, and what operations need.
struct Bench<'b, const LEFT_OUT: u16> {
    engine: &'b Engine<'b, Threads<false, LEFT_OUT>>,
    spaces: [AddressSpace<Threads<false, LEFT_OUT>>; 2],
    away: AddressSpace<Threads<false, LEFT_OUT>>,
    residue: Residue<Threads<false, LEFT_OUT>>,
    paid: Stamp,
}

/// What is timed.
#[derive(Clone, Copy)]
enum Operation {
    Switch,
    Flush,
    Claim,
    Refill,
    SecondActor,
    Nmi,
    Resume,
}

impl<const LEFT_OUT: u16> Bench<'_, LEFT_OUT> {
    /// Makes one and uses it.
    fn with<R>(body: impl FnOnce(&Bench<'_, LEFT_OUT>) -> R) -> R {
        let hw = Threads::new(1, 16, TAGGED);
        let (cpus, epochs) = ([PerCpu::new()], [(); 4].map(|()| Epoch::new()));
        let engine = Engine::new(&hw, &cpus, &epochs, Policy::ALL).expect(super::HOLDS);
        engine.cpu_online();
        let away = engine.new_space(Frame(2));
        let bench = Bench {
            spaces: [0, 1].map(|root| engine.new_space(Frame(root))),
            residue: Residue::new(),
            paid: paid_debt(&engine, &away),
            away,
            engine: &engine,
        };
        ping_pong(bench.engine, &bench.spaces);
        body(&bench)
    }

    /// Does an operation [`LOOP`] times.
    fn time(&self, operation: Operation) -> Cost {
        let Bench { engine, spaces, .. } = self;
        // Each arm has a loop of its own, into which the operation is inlined.
        timed(LOOP, || match operation {
            Operation::Switch => ping_pong(engine, spaces),
            Operation::Flush => {
                (0..LOOP).for_each(|index| unmap(engine, &self.away, [index % 32].into_iter()))
            }
            Operation::Claim => (0..LOOP).for_each(|_| {
                self.residue.owe(self.paid);
                black_box(engine.claim(black_box(&self.residue)).is_some());
            }),
            Operation::Refill => {
                (0..LOOP).for_each(|_| engine.settle_residue(black_box(&self.residue), &self.away))
            }
            Operation::SecondActor => (0..LOOP).for_each(|_| engine.settle(black_box(&self.away))),
            Operation::Nmi => (0..LOOP).for_each(|_| {
                black_box(engine.user_access_allowed());
            }),
            Operation::Resume => (0..LOOP).for_each(|_| {
                engine.enter_lazy();
                engine.switch_to(Some(&spaces[1]), &spaces[1]);
            }),
        })
    }
}

/// An operation with every guard, and with one left out.
fn pair<const LEFT_OUT: u16>(
    rounds: usize,
    operation: Operation,
    name: &'static str,
    without: &'static str,
) -> Row {
    let mut samples = [Samples::default(), Samples::default()];
    Bench::<NOTHING>::with(|guarded| {
        Bench::<LEFT_OUT>::with(|bare| {
            for round in 0..rounds {
                let before = pulse::take();
                let costs = [guarded.time(operation), bare.time(operation)];
                let pulse = before.max(pulse::take());
                // The first rounds warm caches and predictors.
                if round > 0 {
                    for (samples, cost) in samples.iter_mut().zip(costs) {
                        samples.0.push((pulse, cost));
                    }
                }
            }
        });
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

/// Every guard that one CPU alone comes to.
pub(super) fn measure(rounds: usize) -> Vec<Row> {
    macro_rules! pairs {
        ($($operation:ident, $name:literal, $mutant:ident;)*) => {
            vec![$(pair::<{ Mutant::$mutant as u16 }>(
                rounds,
                Operation::$operation,
                $name,
                Mutant::$mutant.name(),
            ),)*]
        };
    }
    pairs! {
        Switch, "switch: looks what the space owes", SwitchIgnoresDebt;
        Flush, "flush with no target: says in the space that it is owed", DebtNotRecorded;
        Claim, "claim: looks whether the debt was paid", ClaimSkipsDebt;
        Refill, "refill: looks what the frame owes", RefillSkipsDebt;
        SecondActor, "second actor: looks whether others owe", SettleSkipped;
        Nmi, "NMI handler: asks before it touches user memory", NmiGuardAlwaysAllows;
        Resume, "back from idle: says so before it looks", RelaxedLeaveLazy;
        Resume, "back from idle: looks what it missed", LazyResumesUnchecked;
        Resume, "back from idle: keeps NMI handlers out until it has looked", ResumeLetsNmisIn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell::Hardware;

    /// What the second run leaves out is what its row names, and nothing else.
    #[test]
    fn a_machine_leaves_out_one_guard() {
        let all = Threads::<false>::new(1, 16, TAGGED);
        let one = Threads::<false, { Mutant::ClaimSkipsDebt as u16 }>::new(1, 16, TAGGED);
        for &mutant in Mutant::ALL {
            assert!(!all.mutant(mutant));
            assert_eq!(one.mutant(mutant), mutant == Mutant::ClaimSkipsDebt);
        }
    }

    /// A claim that looks counts what it found; one that does not look cannot.
    #[test]
    fn the_guard_is_there_in_one_run_and_gone_in_the_other() {
        let claims = |stats: quell::Stats| stats.get(quell::Counter::ClaimsFree);
        let alone = Threads::<false>::new(1, 16, TAGGED);
        let counts = alone.run(|_| {
            let with = Bench::<NOTHING>::with(|bench| {
                bench.time(Operation::Claim);
                claims(bench.engine.stats())
            });
            let without = Bench::<{ Mutant::ClaimSkipsDebt as u16 }>::with(|bench| {
                bench.time(Operation::Claim);
                claims(bench.engine.stats())
            });
            [with, without]
        });
        assert_eq!(*counts[0].as_ref().unwrap(), [LOOP as u64, 0]);
        assert_eq!(measure(3).len(), 9);
    }
}
