//! The suite on a machine of threads. It shows the code that a kernel must write to run the suite ([`machine`]), and
//! proves that the suite fails on a machine with a fault.

mod machine;

use machine::{CPUS, Mistake, Toy};
use quell::{
    Engine, Frame, Hardware, LedgerEntry, Page, PageRange, PerCpuData, Policy, Purpose, Scope,
    Tagging,
};
use quell_conformance::{Bench, Check, Rights, Suite};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Returns a machine, and an engine on it.
fn machine<const S: bool>(
    tagging: Tagging,
    policy: Policy,
    wrong: Mistake,
) -> (&'static Toy<S>, &'static ToyEngine<S>) {
    // Interrupt handlers refer to the engine as long as the machine exists, which is for ever, as in a kernel.
    let toy: &'static Toy<S> = Box::leak(Box::new(Toy::new(tagging, wrong)));
    // One more than the machine has, because an engine may have CPUs that don't run the suite.
    let cpus: Vec<_> = (0..=CPUS).map(|_| PerCpuData::new()).collect();
    let ledger: Vec<_> = (0..8).map(|_| LedgerEntry::new()).collect();
    let engine =
        Engine::new(toy, cpus.leak(), ledger.leak(), policy).expect("a machine that holds");
    let engine: &'static ToyEngine<S> = Box::leak(Box::new(engine));
    toy.handle_with(|| engine.this_cpu().mask_interrupts().on_interrupt());
    (toy, engine)
}

type ToyEngine<const S: bool = true> = Engine<'static, Toy<S>>;

/// Runs the suite on such a machine, and returns the results that CPU 0 reported.
fn run(tagging: Tagging, policy: Policy, wrong: Mistake) -> Vec<Check> {
    run_on(machine::<true>(tagging, policy, wrong)).1
}

fn run_on<const S: bool>(
    (toy, engine): (&'static Toy<S>, &'static ToyEngine<S>),
) -> (&'static Toy<S>, Vec<Check>) {
    let suite = Suite::new(engine);
    let root = *toy.process.get_or_init(|| toy.allocate(1).first);
    // SAFETY: in this machine in software a root is a number, and any number is valid.
    let process = unsafe { engine.new_space(root) };
    let checks = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for cpu in 0..CPUS {
            let (suite, checks, process) = (&suite, &checks, &process);
            scope.spawn(move || {
                let _here = toy.enter(cpu);
                #[cfg(quell_mutants)]
                mutants::make(toy.wrong);
                // The engine would refuse the second CPU with the same number, but here the suite must find it.
                if !toy.wrong.is_of_numbers() {
                    engine.cpu_online();
                }
                // One CPU runs no process.
                let runs = (cpu > 0 && !toy.wrong.is_of_numbers()).then_some(process);
                if let Some(process) = runs {
                    engine.this_cpu().mask_interrupts().switch(None, process);
                }
                suite.run(runs, |check| checks.lock().unwrap().push(check));
            });
        }
    });
    (toy, checks.into_inner().unwrap())
}

const PCID: Tagging = Tagging::PerCpu { count: 4 };
const ASID: Tagging = Tagging::Global { bits: 8 };

#[test]
fn the_suite_passes_where_nothing_is_wrong() {
    for tagging in [Tagging::None, PCID, ASID] {
        for policy in [Policy::BASELINE, Policy::ALL] {
            let checks = run(tagging, policy, Mistake::Nothing);
            assert_eq!(checks.len(), 16);
            assert_eq!(
                checks.iter().find_map(|check| check.kept),
                Some(CPUS as u64),
                "nothing was stale to see"
            );
            for check in checks {
                assert_eq!(check.failures, 0, "{tagging:?} {policy:?} {check:?}");
            }
        }
    }
}

/// Checks that the check with this name fails.
fn fails(tagging: Tagging, wrong: Mistake, name: &str) {
    failed(&run(tagging, Policy::ALL, wrong), name, (tagging, wrong));
}

#[track_caller]
fn failed(checks: &[Check], name: &str, on: (Tagging, Mistake)) {
    let failed: Vec<_> = checks.iter().filter(|check| check.failures > 0).collect();
    assert!(failed.iter().any(|check| check.name.contains(name)), "{on:?}: {failed:?}");
}

#[test]
fn a_machine_that_does_not_do_as_it_is_told_is_found_out() {
    for (tagging, wrong, name) in [
        (PCID, Mistake::NoInvalidation, "changed_pages"),
        (PCID, Mistake::AlwaysKeeps, "own_pages"),
        (PCID, Mistake::ShortZeroing, "zeroed_is_zero"),
        (PCID, Mistake::MaskDoesNotNest, "everybody_flushes"),
        (PCID, Mistake::RootStays, "roots_are_left"),
        (PCID, Mistake::RootsWithoutKernel, "kernels_own"),
        (PCID, Mistake::ProcessWithoutKernel, "kernels_own"),
        (PCID, Mistake::KeepsGlobal, "kernels_own"),
        (PCID, Mistake::KeepsKernel, "kernels_own"),
        (ASID, Mistake::KeepsKernel, "kernels_own"),
        (PCID, Mistake::DeviceNotTold, "devices_forget"),
        (ASID, Mistake::DeviceNotTold, "devices_forget"),
        (PCID, Mistake::DeviceAnswersEarly, "devices_forget"),
        (ASID, Mistake::DeviceAnswersEarly, "devices_forget"),
        (PCID, Mistake::MarkOfNothing, "devices_forget"),
        (ASID, Mistake::MarkOfNothing, "devices_forget"),
        (PCID, Mistake::OneNumberForTwo, "number_of_its_own"),
        (PCID, Mistake::NumberTooHigh, "number_of_its_own"),
        (PCID, Mistake::TornWords, "words_are_shared"),
        (ASID, Mistake::NoBroadcast, "changed_pages"),
        (ASID, Mistake::NoCompletion, "changed_pages"),
        (PCID, Mistake::LeafOnly, "unlinked_tables"),
    ] {
        fails(tagging, wrong, name);
    }
    // This machine has a device, but its engine doesn't know of it.
    let checks = run_on(machine::<false>(PCID, Policy::ALL, Mistake::Nothing)).1;
    failed(&checks, "devices_forget", (PCID, Mistake::Nothing));
}

/// Two initiators that have masked interrupts wait for each other's interrupts. The suite then hangs, as documented,
/// until a watchdog ends the wait.
#[test]
fn a_machine_whose_interrupts_wait_for_their_targets_hangs() {
    let hangs = |wrong| run_on(machine::<true>(PCID, Policy::ALL, wrong)).0.hung.load(SeqCst);
    assert!(!hangs(Mistake::Nothing));
    assert!(hangs(Mistake::InterruptWaits));
}

/// Turns a mutant on, for each CPU's thread.
#[cfg(quell_mutants)]
mod mutants {
    use super::Mistake;
    use quell::selector;
    use std::cell::Cell;

    thread_local! {
        static MADE: Cell<u32> = const { Cell::new(0) };
    }

    pub fn make(wrong: Mistake) {
        selector::install(|number| MADE.get() == number);
        MADE.set(match wrong {
            Mistake::Mutant(name) => selector::number_of(name).expect("a mutant"),
            _ => 0,
        });
    }
}

#[cfg(quell_mutants)]
#[test]
fn mutants_of_the_engine_are_found() {
    for (mutant, name) in [
        ("SkipLocalFlush", "changed_pages"),
        ("SkipPost", "changed_pages"),
        ("HandlerSkipsFlush", "changed_pages"),
        ("FinishSkipsFlush", "changed_pages"),
        ("SkipGenerationBump", "changed_pages"),
        ("SwitchIgnoresGeneration", "own_pages"),
        ("PendingNotRecorded", "later_observers"),
        ("FlushPendingSkipped", "later_observers"),
        ("ReuseSkipsFlush", "deferred_flushes"),
        ("ZeroSkipsTail", "zeroed_is_zero"),
        ("KernelSkipsIdle", "kernels_own"),
        ("KernelKeptUnderTags", "kernels_own"),
        ("KernelDeferralFlushedByTag", "kernels_own"),
        ("EntrySkipsFlush", "kernels_own"),
    ] {
        fails(PCID, Mistake::Mutant(mutant), name);
    }
    fails(ASID, Mistake::Mutant("FlushPendingOnlyWaits"), "later_observers");
}

/// A kernel may run the suite at any time. Afterwards each CPU has loaded the same space as before and takes part in
/// flushes, and the suite has given back its memory.
#[test]
fn the_suite_leaves_what_it_found() {
    for tagging in [Tagging::None, PCID, ASID] {
        let (toy, engine) = machine::<true>(tagging, Policy::ALL, Mistake::Nothing);
        let page = Page(7);
        let (root, frames) = (toy.allocate(1).first, toy.allocate(3));
        // SAFETY: in this machine in software a root is a number, and any number is valid.
        let space = unsafe { engine.new_space(root) };
        let version = |version: u64| frames.first.plus(version);
        (0..3).for_each(|index| toy.set_word(version(index), 0, index));
        toy.set(root, page, Some((version(0), Rights::Read)));
        let suite = Suite::new(engine);
        let arrived = AtomicUsize::new(0);
        // CPUs serve interrupts while they wait for each other, as in a kernel.
        let meet = |times: usize| {
            arrived.fetch_add(1, SeqCst);
            while arrived.load(SeqCst) < times * CPUS {
                toy.relax();
            }
        };
        let change = |to: u64| {
            toy.set(root, page, Some((version(to), Rights::Read)));
            let mut batch = engine.batch::<_, Frame>(Purpose::Call);
            batch.changed(&space, PageRange::base(page, 1), Scope::Leaf);
            batch.finish().for_each(drop);
        };
        std::thread::scope(|scope| {
            for cpu in 0..CPUS {
                let (suite, space, meet, change) = (&suite, &space, &meet, &change);
                scope.spawn(move || {
                    let _here = toy.enter(cpu);
                    let read = || toy.try_read(page.address());
                    engine.cpu_online();
                    // The last CPU has nothing loaded.
                    let runs = cpu + 1 < CPUS;
                    if runs {
                        engine.this_cpu().mask_interrupts().switch(None, space);
                    }
                    suite.run(runs.then_some(space), |_| ());
                    assert!(!toy.is_masked(), "interrupts are on");
                    assert_eq!(engine.this_cpu().is_detached(), !runs);
                    assert_eq!(read(), runs.then_some(0), "CPU {cpu}, {tagging:?}");
                    meet(1);
                    if cpu == 0 {
                        change(1);
                    }
                    meet(2);
                    assert_eq!(read(), runs.then_some(1), "CPU {cpu}, {tagging:?}");
                    if !runs {
                        engine.this_cpu().mask_interrupts().switch(None, space);
                        assert_eq!(read(), Some(1), "CPU {cpu}, {tagging:?}");
                    }
                    meet(3);
                    if cpu == 0 {
                        change(2);
                    }
                    meet(4);
                    assert_eq!(read(), Some(2), "CPU {cpu}, {tagging:?}");
                });
            }
        });
        let taken = toy.taken.lock().unwrap();
        assert!(taken.is_empty(), "{tagging:?}: {taken:?} was not given back");
    }
}
