//! Checks the memory orderings of the lock-free parts with loom.
//!
//! The engine runs here unchanged on loom's atomics: [`quell::Word`] is its alias for the machine's atomics ([`word`]).
//! Loom tries the interleavings of small programs (with a bounded number of preemptions) *and* all values that loads
//! may return under the C11 memory model. A frame is a cell without synchronisation ([`machine`]). So only the engine's
//! orderings can order a CPU that reads the frame through a TLB before the new owner that writes it. If one of them is
//! too weak, loom reports a race.
//!
//! Then we weaken each ordering stronger than `Relaxed` that a race ([`races`]) passes in the engine, `quell-zero` or
//! `quell-vm`, by one step. For example, `SeqCst` becomes acquire and release, `Acquire` or `Release` becomes
//! `Relaxed`, and a fence is omitted. A race that the [`table`] lists for its function must be lost then, so no
//! ordering is superfluous. Of `quell-vm`, we compile the few files with orderings into this test ([`manager`]), with
//! loom's number as [`shared`].
//!
//! # Not shown
//!
//! Loom runs one thread at a time, and no load returns a later store: a load executed early shows only as one that
//! returns an old value. The races are short and have two threads, though more CPUs may be paused inside the engine. We
//! test table walks, store buffers, receipts and NMIs with the adversary, and the processor's own reordering with the
//! stress test on threads.

extern crate alloc;

mod machine;
mod manager;
mod programs;
mod race;
mod races;
mod shared;
mod source;
mod table;
mod word;

use race::Race;
use races::RACES;
use source::Place;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use word::Seen;

/// Runs a race in every way that loom knows. Returns the number of ways. Panics on a violation.
fn check(race: &'static Race) -> usize {
    let executions = std::sync::Arc::new(AtomicUsize::new(0));
    let count = executions.clone();
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(race.preemptions);
    model.max_branches = 20_000;
    model.check(move || {
        count.fetch_add(1, Relaxed);
        // Loom has ended all threads of the last execution.
        machine::forget_last();
        race.run();
    });
    executions.load(Relaxed)
}

/// Returns the number of ways in which the race holds, or the first violation. An ordering may be weakened; if none is,
/// also returns the orderings that the race passed.
fn run(race: &'static Race, weak: Option<&'static Place>) -> (Result<usize, String>, Vec<Seen>) {
    let search = move || {
        word::weaken(weak);
        let result = catch_unwind(AssertUnwindSafe(|| check(race))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            text.unwrap_or_default()
        });
        (result, word::seen())
    };
    // It has its own thread, because a panic leaves loom's state behind.
    let thread = std::thread::spawn(search);
    thread.join().expect("panics are caught")
}

/// Returns whether a run failed because it broke the contract, and not because loom gave up.
fn breaks_the_contract(why: &str) -> bool {
    why.starts_with("Causality violation")
        || why.starts_with('C') && why[1..2].parse::<u8>().is_ok()
}

/// Applies `act` to each of `items`, two at a time. The results are in the order of the items.
fn two_at_a_time<T: Sync, R: Send>(
    items: &'static [T],
    act: impl Fn(&'static T) -> R + Sync,
) -> Vec<R> {
    let waiting = Mutex::new(items.iter().enumerate());
    let results = Mutex::new(BTreeMap::new());
    let next = || waiting.lock().expect("no thread panics with it").next();
    let work = || {
        while let Some((index, item)) = next() {
            let result = act(item);
            results.lock().expect("no thread panics with it").insert(index, result);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    results.into_inner().expect("no thread panicked with it").into_values().collect()
}

/// Silences the panics of runs that are meant to panic.
fn quietly() {
    std::panic::set_hook(Box::new(|panic| {
        let name = std::thread::current().name().map(str::to_string);
        if name.is_some_and(|name| name.contains("ordering")) {
            eprintln!("{panic}");
        }
    }));
}

/// Returns whether the race's name contains the text in the environment variable `QUELL_RACES`.
fn is_wanted(race: &str) -> bool {
    race.contains(&std::env::var("QUELL_RACES").unwrap_or_default())
}

/// Runs every wanted race, all of which must hold. Returns the orderings that they pass, weakened.
fn places() -> &'static [Place] {
    let runs = two_at_a_time(RACES, |race| {
        let began = std::time::Instant::now();
        let (result, passed) = is_wanted(race.name).then(|| run(race, None))?;
        println!("{}: {result:?}, {:.1?}", race.name, began.elapsed());
        Some((race.name, result, passed))
    });
    let mut seen = Vec::new();
    for (name, result, passed) in runs.into_iter().flatten() {
        result.unwrap_or_else(|why| panic!("{name} is lost: {why}"));
        seen.extend(passed);
    }
    seen.sort_by_key(|place| (place.file.clone(), place.line, place.nth));
    seen.dedup();
    source::places(&seen)
}

fn is_lost(race: &'static Race, place: &'static Place) -> bool {
    run(race, Some(place)).0.is_err_and(|why| breaks_the_contract(&why))
}

/// With `QUELL_RACES=offline`, for example, this tests only the races whose names contain that text, and the orderings
/// that need one of them.
#[test]
fn each_ordering_suffices_and_none_is_there_in_vain() {
    quietly();
    let places = places();
    let unnoticed = two_at_a_time(places, |place| {
        let named = |name| RACES.iter().find(|race| race.name == name);
        let mut races = place.races.iter().map(|name| named(*name).expect("the table names races"));
        let began = std::time::Instant::now();
        let lost = races.any(|race| is_lost(race, place));
        let passed = if lost { "noticed" } else { "NOT noticed" };
        println!("{place}: {passed}, {:.1?}", began.elapsed());
        (!lost).then(|| format!("{place}: none of {:?} is lost", place.races))
    });
    let unnoticed: Vec<_> = unnoticed.into_iter().flatten().collect();
    assert!(unnoticed.is_empty(), "weakened unnoticed: {unnoticed:#?}");
    println!("{} weakened orderings, each noticed", places.len());
}

/// Tries every race with each ordering of a function weakened, and prints the races that are lost. It takes some
/// minutes for each function.
#[test]
#[ignore = "a search for the race that needs an ordering: QUELL_FUNCTION=record"]
fn search() {
    quietly();
    let function = std::env::var("QUELL_FUNCTION").unwrap_or_default();
    two_at_a_time(places(), |place| {
        if function.is_empty() || place.function == function {
            let lost = RACES.iter().find(|race| is_lost(race, place));
            println!("{place}: {}", lost.map_or("none is lost", |race| race.name));
        }
    });
}
