//! What guards cost: an operation beside the same one with the guard compiled away.
//!
//! Each guard is a rule of the engine ([`quell::rules`]). The engine of the second run does not keep it,
//! which the compiler knows, so that no trace of the guard is left. Both run by turns on one thread.
//!
//! All caches are warm and no other CPU is there: a load here is one that hits. The machine in software shows what a
//! guard costs other CPUs (`quell reproduce --guards`).

use super::operation::{HOLDS, LOOP, TAGGED, new_space, paid_debt, ping_pong, unmap};
use super::sample::{Cost, Row, Samples, longest_own, timed};
use crate::{Threads, pulse};
use quell::{
    AddressSpace, AllRules, Engine, LedgerEntry, PerCpu, Policy, Residue, Rule, Rules, Stamp, rules,
};
use std::hint::black_box;

/// An engine on a machine of one CPU, and what operations need.
struct Bench<'b, R: Rules> {
    engine: &'b Engine<'b, Threads<false>, R>,
    spaces: [AddressSpace<Threads<false>>; 2],
    away: AddressSpace<Threads<false>>,
    residue: Residue<Threads<false>>,
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

impl<R: Rules + Default> Bench<'_, R> {
    /// Makes one and uses it.
    fn with<T>(body: impl FnOnce(&Bench<'_, R>) -> T) -> T {
        let hw = Threads::new(1, 16, TAGGED);
        let (cpus, ledger) = ([PerCpu::new()], [(); 4].map(|()| LedgerEntry::new()));
        let engine =
            Engine::with_rules(&hw, &cpus, &ledger, Policy::ALL, R::default()).expect(HOLDS);
        engine.cpu_online();
        let away = new_space(&engine, 2);
        let bench = Bench {
            spaces: [0, 1].map(|root| new_space(&engine, root)),
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
fn pair<Bare: Rules + Default>(
    _: Bare,
    rounds: usize,
    operation: Operation,
    name: &'static str,
    without: &'static str,
) -> Row {
    let mut samples = [Samples::default(), Samples::default()];
    Bench::<AllRules>::with(|guarded| {
        Bench::<Bare>::with(|bare| {
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

/// All rules but one, which the compiler knows.
macro_rules! all_but {
    ($rule:ident) => {{
        #[derive(Default)]
        struct But;
        impl Rules for But {
            #[inline(always)]
            fn keeps(&self, rule: &'static Rule) -> bool {
                !core::ptr::eq(rule, &rules::$rule)
            }
        }
        But
    }};
}

/// Every guard that one CPU alone comes to.
pub(super) fn measure(rounds: usize) -> Vec<Row> {
    macro_rules! pairs {
        ($($operation:ident, $name:literal, $rule:ident;)*) => {
            vec![$(pair(
                all_but!($rule),
                rounds,
                Operation::$operation,
                $name,
                rules::$rule.name,
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
        Resume, "back from idle: looks what it missed", LazyResumesUnchecked;
        Resume, "back from idle: keeps NMI handlers out until it has looked", ResumeLetsNmisIn;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim that looks counts what it found; one that does not look cannot.
    #[test]
    fn the_guard_is_there_in_one_run_and_gone_in_the_other() {
        fn claims(stats: quell::Stats) -> u64 {
            stats.get(quell::Counter::ClaimsFree)
        }
        fn without<R: Rules + Default>(_: R) -> u64 {
            Bench::<R>::with(|bench| {
                bench.time(Operation::Claim);
                claims(bench.engine.stats())
            })
        }
        let alone = Threads::<false>::new(1, 16, TAGGED);
        let counts = alone.run(|_| {
            let with = Bench::<AllRules>::with(|bench| {
                bench.time(Operation::Claim);
                claims(bench.engine.stats())
            });
            let without = without(all_but!(ClaimSkipsDebt));
            [with, without]
        });
        assert_eq!(*counts[0].as_ref().unwrap(), [LOOP as u64, 0]);
        assert_eq!(measure(3).len(), 8);
    }
}
