//! Litmus tests: the results of small programs on machines that reorder, compared with those that Arm and RISC-V
//! allow.

use super::*;
use crate::bare_kernel::{BareKernel, BareProgram};
use crate::machine::End;
use crate::scenario::{Scenario, Script};
use crate::schedule::Strategy;
use crate::search::ExhaustiveSearch;
use crate::session::{Case, Session};
use quell::Word as _;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

const WORDS: usize = 16;
const REORDERING: [&str; 2] = ["arm-reordering", "riscv-reordering"];

thread_local! {
    static MEMORY: &'static [AdversaryWord; WORDS] =
        Box::leak(Box::new(std::array::from_fn(|_| AdversaryWord::new(0))));
}

fn word(number: usize) -> &'static AdversaryWord {
    MEMORY.with(|memory| &memory[number])
}

fn x() -> &'static AdversaryWord {
    word(0)
}

fn y() -> &'static AdversaryWord {
    word(1)
}

/// Returns the word for a CPU's results. Each value is a decimal digit.
fn result(cpu: usize) -> &'static AdversaryWord {
    word(WORDS - 1 - cpu)
}

fn tell(cpu: usize, read: &[u64]) {
    let digits = read.iter().fold(0, |all, digit| all * 10 + digit);
    result(cpu).fetch_add(digits, Relaxed);
}

/// Clears the results before a run. These words are the host's, so a session that resumes from a saved beginning
/// doesn't restore them.
fn forget_results() {
    (0..WORDS).for_each(|number| word(number).poke(0));
}

type Body = fn(&BareKernel<'_>, usize);

fn run(machine: &str, cpus: usize, body: Body, each: impl FnOnce(&mut Session<'_>)) {
    let program = Script::Engine(BareProgram { each: |_, _| {}, all: body, ..BareProgram::NONE });
    let scenario = Scenario { cpus, ..Scenario::of("litmus", 1, program) };
    each(&mut Session::new(Case::on(&scenario, machine)));
}

fn results(cpus: usize) -> Vec<u64> {
    (0..cpus).map(|cpu| result(cpu).peek()).collect()
}

/// Returns the results of a program by each kind of search. Checks that random results are among those of the
/// exhaustive search, with and without distinguishing states.
fn outcomes(machine: &str, cpus: usize, body: Body) -> BTreeSet<Vec<u64>> {
    let every = |by_state: bool| {
        let mut found = BTreeSet::new();
        run(machine, cpus, body, |session| {
            let mut search = ExhaustiveSearch::new(by_state);
            let mut runs = 0;
            loop {
                forget_results();
                let run = session.run_search(&mut search);
                runs += 1;
                assert!(runs < 400_000, "it is too large");
                if session.take_surprise() {
                    search = ExhaustiveSearch::new(by_state);
                    found.clear();
                    continue;
                }
                match run.end {
                    End::Finished => _ = found.insert(results(cpus)),
                    End::Pruned => {}
                    End::Violated(violation) => panic!("{violation}"),
                }
                if !search.advance() {
                    break;
                }
            }
        });
        found
    };
    let found = every(true);
    if cpus < 4 {
        assert_eq!(found, every(false), "{machine}: states hide outcomes");
    }
    let random = at_random(machine, cpus, body, 2000);
    assert!(
        random.is_subset(&found),
        "{machine}: {random:?}, of which a search finds {found:?} alone"
    );
    found
}

fn at_random(machine: &str, cpus: usize, body: Body, runs: u64) -> BTreeSet<Vec<u64>> {
    let mut found = BTreeSet::new();
    run(machine, cpus, body, |session| {
        for seed in 0..runs {
            forget_results();
            session.run(match seed % 2 {
                0 => Strategy::random(seed),
                _ => Strategy::pct(seed, 2, 40),
            });
            found.insert(results(cpus));
        }
    });
    found
}

/// Checks whether `body` can have `outcome` on machines that reorder. It never can on a machine that doesn't.
fn reordering_allows(allowed: bool, cpus: usize, outcome: &[u64], body: Body) {
    for machine in REORDERING {
        let found = outcomes(machine, cpus, body);
        assert_eq!(found.contains(outcome), allowed, "{machine}: {found:?}");
    }
    let found = outcomes("arm-asid8", cpus, body);
    assert!(!found.contains(outcome), "arm-asid8: {found:?}");
}

/// CPU 0 writes a message and then a flag. CPU 1 `reads` the flag and then the message.
macro_rules! message {
    ($writes:expr, $reads:expr) => {
        |_, cpu| match cpu {
            0 => {
                x().store(1, Relaxed);
                let writes: fn() = $writes;
                writes();
            }
            _ => {
                let reads: fn() -> [u64; 2] = $reads;
                tell(cpu, &reads());
            }
        }
    };
}

/// Stores the flag after a fence.
fn release_fenced() {
    AdversaryWord::fence(Release);
    y().store(1, Relaxed);
}

/// Reads the flag, and after a fence the message.
fn read_fenced(order: Ordering) -> [u64; 2] {
    let flag = y().load(Relaxed);
    AdversaryWord::fence(order);
    [flag, x().load(Relaxed)]
}

/// Performs an exchange that fails, with this ordering. Returns the value.
fn failed(word: &AdversaryWord, order: Ordering) -> u64 {
    word.compare_exchange(7, 8, AcqRel, order).unwrap_or_else(|held| held)
}

/// Checks whether the message can be lost: CPU 1 sees the flag and not the message.
fn may_lose(lost: bool, body: Body) {
    reordering_allows(lost, 2, &[0, 10], body);
}

#[test]
fn a_message_is_seen_by_a_cpu_that_acquires() {
    may_lose(true, message!(|| y().store(1, Release), || [y().load(Relaxed), x().load(Acquire)]));
    may_lose(false, message!(|| y().store(1, Release), || [y().load(Acquire), x().load(Relaxed)]));
    // An acquire fence makes earlier reads acquire. A full fence does so, too, but one that only releases doesn't.
    may_lose(false, message!(release_fenced, || read_fenced(Acquire)));
    may_lose(false, message!(|| _ = y().swap(1, Release), || read_fenced(SeqCst)));
    may_lose(true, message!(|| _ = y().swap(1, Release), || read_fenced(Release)));
}

#[test]
fn an_exchange_acquires_as_it_says() {
    may_lose(
        true,
        message!(|| y().store(1, Release), || [y().fetch_add(0, Relaxed), x().load(Relaxed)]),
    );
    may_lose(
        false,
        message!(|| y().store(1, Release), || [y().fetch_add(0, Acquire), x().load(Relaxed)]),
    );
    // An exchange that fails is a load.
    may_lose(
        true,
        message!(|| y().store(1, Release), || [failed(y(), Relaxed), x().load(Relaxed)]),
    );
    may_lose(
        false,
        message!(|| y().store(1, Release), || [failed(y(), Acquire), x().load(Relaxed)]),
    );
    // That load may be early: the CPU sees the flag set, and its exchange then reads an older value of the message.
    reordering_allows(true, 2, &[0, 10], |_, cpu| match cpu {
        0 => {
            x().store(1, Release);
            y().store(1, Release);
        }
        _ => {
            let flag = y().load(Relaxed);
            let held = x().compare_exchange(7, 8, Relaxed, Relaxed);
            tell(cpu, &[flag, held.unwrap_or_else(|held| held)]);
        }
    });
    // A successful one reads the newest value.
    for machine in REORDERING {
        let found = outcomes(machine, 2, |_, cpu| {
            let held = x().compare_exchange(0, 1, Relaxed, Relaxed);
            tell(cpu, &[u64::from(held.is_ok())]);
        });
        assert_eq!(found, BTreeSet::from([vec![0, 1], vec![1, 0]]), "{machine}");
    }
}

/// Each CPU writes its own word and reads the other's.
macro_rules! crossing {
    ($write:expr, $read:expr) => {
        |_, cpu| {
            let (write, read): (fn(&AdversaryWord), fn(&AdversaryWord) -> u64) = ($write, $read);
            write(word(cpu));
            tell(cpu, &[read(word(1 - cpu))]);
        }
    };
}

#[test]
fn consistent_accesses_and_fences_do_not_cross() {
    let cross = |allowed, body: Body| reordering_allows(allowed, 2, &[0, 0], body);
    cross(false, crossing!(|w| w.store(1, SeqCst), |w| w.load(SeqCst)));
    cross(false, crossing!(|w| _ = w.swap(1, SeqCst), |w| w.load(SeqCst)));
    // The store of an exchange may become visible later than a load that follows.
    cross(true, crossing!(|w| _ = w.swap(1, SeqCst), |w| w.load(Acquire)));
    cross(true, crossing!(|w| _ = w.swap(1, AcqRel), |w| w.load(SeqCst)));
    fn store_fenced(word: &AdversaryWord) {
        word.store(1, Relaxed);
        AdversaryWord::fence(SeqCst);
    }
    cross(false, crossing!(store_fenced, |w| w.load(Relaxed)));
}

#[test]
fn a_word_is_coherent() {
    for machine in REORDERING {
        let found = outcomes(machine, 2, |_, cpu| match cpu {
            0 => {
                x().store(1, Relaxed);
                x().store(2, Relaxed);
            }
            _ => tell(cpu, &[x().load(Relaxed), x().load(Relaxed), x().load(Relaxed)]),
        });
        for outcome in &found {
            let [a, b, c] = [outcome[1] / 100, outcome[1] / 10 % 10, outcome[1] % 10];
            assert!(a <= b && b <= c, "{machine}: {outcome:?}");
        }
        assert_eq!(found.len(), 10, "{machine}: every other outcome is possible");
        // A CPU doesn't read a value older than its own store.
        let found = outcomes(machine, 2, |_, cpu| match cpu {
            0 => x().store(1, Relaxed),
            _ => {
                x().store(2, Relaxed);
                tell(cpu, &[x().load(Relaxed)]);
                x().fetch_add(2, Relaxed);
                tell(cpu, &[x().load(Relaxed)]);
            }
        });
        for outcome in &found {
            let (first, second) = (outcome[1] % 10, outcome[1]);
            assert!(second > 0 && first != 0, "{machine}: {outcome:?}");
        }
    }
}

/// Checks that two CPUs see the stores of two others in one order, if they read in order.
#[test]
fn stores_reach_all_others_at_once() {
    macro_rules! independent {
        ($order:expr) => {
            |_, cpu| match cpu {
                0 | 1 => word(cpu).store(1, Relaxed),
                _ => {
                    let (first, second) = (word(cpu - 2), word(3 - cpu));
                    tell(cpu, &[first.load($order), second.load($order)]);
                }
            }
        };
    }
    let disagree = &[0, 0, 10, 10];
    reordering_allows(true, 4, disagree, independent!(Relaxed));
    reordering_allows(false, 4, disagree, independent!(Acquire));
    // A CPU that sees a store sees everything that the storing CPU had seen before.
    reordering_allows(false, 3, &[0, 1, 10], |_, cpu| match cpu {
        0 => x().store(1, Relaxed),
        1 => {
            let seen = x().load(Acquire);
            tell(cpu, &[seen]);
            y().store(seen, Release);
        }
        _ => tell(cpu, &[y().load(Acquire), x().load(Relaxed)]),
    });
}

/// Makes more stores than a buffer has places.
fn long() {
    x().store(1, Relaxed);
    AdversaryWord::fence(Release);
    for number in 0..10 {
        word(1 + number).store(1, Relaxed);
    }
}

#[test]
fn stores_wait_without_bound() {
    // With the fixed scheduler nothing becomes visible before it must. We check whether the first store is still
    // invisible at the end.
    let body: Body = |_, cpu| {
        if cpu == 0 {
            long();
            let seen = x().peek();
            tell(cpu, &[1 + seen]);
        }
    };
    for (machine, seen) in [("arm-asid8", 1), ("arm-reordering", 0), ("riscv-reordering", 0)] {
        run(machine, 2, body, |session| {
            forget_results();
            session.run(Strategy::default());
            assert_eq!(results(2), [1 + seen, 0], "{machine}");
        });
    }
    // The last of many overtakes all others.
    let overtaken: Body = |_, cpu| match cpu {
        0 => (0..11).for_each(|number| word(number).store(1, Relaxed)),
        _ => {
            let last = word(10).load(Acquire);
            let others: u64 = (0..10).map(|number| word(number).load(Relaxed)).sum();
            tell(cpu, &[last, others.min(9)]);
        }
    };
    for machine in REORDERING {
        let found = at_random(machine, 2, overtaken, 20_000);
        assert!(found.contains(&vec![0, 10]), "{machine}: {found:?}");
    }
    // But it doesn't overtake a fence.
    let fenced: Body = |_, cpu| match cpu {
        0 => long(),
        _ => tell(cpu, &[word(10).load(Acquire), x().load(Relaxed)]),
    };
    for machine in REORDERING {
        let found = at_random(machine, 2, fenced, 20_000);
        assert!(found.contains(&vec![0, 11]) && !found.contains(&vec![0, 10]), "{found:?}");
    }
}

/// Checks that a store before an interrupt is visible to the interrupt's handler.
#[test]
fn an_interrupt_tells_what_was_stored() {
    let mut past = Past::default();
    x().poke(1);
    past.written(x(), (0, 1), 5);
    past.stored(0, x(), false, 5);
    let older = |past: &Past| past.older(1, x(), SeqCst).collect::<Vec<_>>();
    assert_eq!(older(&past), [0]);
    past.tell(0, 1);
    assert_eq!(older(&past), [0], "it was not taken");
    past.hear(1);
    assert_eq!(older(&past), [0; 0]);
}

/// Checks that a load after a fence comes after earlier effects of a barrier or a store to a frame.
#[test]
fn a_fence_waits_for_more_than_words() {
    let mut past = Past::default();
    past.keep();
    x().poke(1);
    past.written(x(), (0, 1), 5);
    let older = |past: &Past| past.older(1, x(), Relaxed).collect::<Vec<_>>();
    past.took_effect(1, 4);
    past.fence(1);
    assert_eq!(older(&past), [0], "it took effect before");
    past.took_effect(1, 6);
    assert_eq!(older(&past), [0], "nothing orders the load");
    past.fence(1);
    assert_eq!(older(&past), [0; 0]);
}
