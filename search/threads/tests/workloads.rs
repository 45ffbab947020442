//! Runs workload files on threads: each keeps the contract, and mutants of the engine and the manager are noticed.
//!
//! `QUELL_MUTANT_ROUNDS` is the maximum number of runs of a file until a mutant must be found (50 by default).

use crate::turn;
use quell::{Counter, Mechanism, Policy};
use quell_threads::vm::{ProgramRun, Report, RunError};
use quell_workloads::{Failure, StatementError, Workload};
use std::path::Path;

fn performance(workload: Workload, cpus: usize) -> ProgramRun {
    ProgramRun { workload, cpus, policy: Policy::ALL, seed: 1, without: None }
}

fn run(performance: &ProgramRun) -> Result<Report, RunError> {
    let _turn = turn();
    performance.run()
}

#[track_caller]
fn holds(performance: &ProgramRun) -> Report {
    let report = run(performance).unwrap_or_else(|error| panic!("{error}"));
    let name = performance.workload.name();
    if let Some(violation) = &report.violation {
        panic!("{name}, {:?}: {violation}", performance.policy);
    }
    report
}

/// Returns every file of the folder, with its default parameters. Callers run it on at most four CPUs.
fn files() -> Vec<Workload> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads");
    let entries = std::fs::read_dir(folder).expect("the workloads");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let mut files: Vec<_> = paths
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a file of text");
            let path = path.to_str().expect("a path of text");
            Workload::parse(path, &text).unwrap_or_else(|error| panic!("{error}"))
        })
        .collect();
    files.sort_by_key(Workload::name);
    files
}

#[test]
#[ignore = "seconds, and on threads all run in small: `cargo xtask ci threads`"]
fn every_file_keeps_the_contract() {
    let files = files();
    assert!(files.len() >= Workload::all().len(), "{files:?}");
    for file in files {
        let cpus = file.cpus().min(4);
        let fitted = file.fitted(cpus);
        let file = fitted.unwrap_or_else(|why| panic!("{}: {why}", file.name()));
        let report = holds(&performance(file, cpus));
        assert!(report.operations > 0, "{} did nothing", file.name());
        assert!(report.accesses > 0 && report.calls > 0, "{report:?}");
    }
}

/// CPU 0 unmaps or reclaims pages in every way that programs have, while the others use them.
const SHARED: &str = r#"
name = "shared"
title = "pages go while others use them"
mechanism = "S4"
cpus = 3

[parameters]
rounds = { unit = "count", default = 40, least = 1, most = 1_000_000, meaning = "How often each of them is done." }
pages = { unit = "count", default = 8, least = 1, most = 64, meaning = "How many pages there are." }

[shared]
place = 1
file = 1
reader = 1

[memory]
touched = "4 * pages * 4K"

[figure]
says = "ns per round"
value = "nanoseconds / done"

[operation]
is = "round"

[[threads]]
when = "cpu == 0"
program = [
    { map = "area", bytes = "pages * 4K" },
    { create = "id", bytes = "pages * 4K" },
    { map = "mapped", bytes = "pages * 4K", shared = "id" },
    { write = "area", bytes = "pages * 4K" },
    { write = "mapped", bytes = "pages * 4K" },
    { let = "file", be = "mapped" },
    { let = "place", be = "area" },
    { begin = true },
    { repeat = "rounds", do = [
        { let = "page", be = "random(pages) * 4K" },
        { discard = "area + page", bytes = "4K" },
        { map = "other", bytes = "4K" },
        { write = "other" },
        { unmap = "other", bytes = "4K" },
        { page_out = "area", bytes = "pages * 4K" },
        { sync = "id" },
        { page_out = "mapped", bytes = "pages * 4K" },
        { write = "mapped + page", value = "page" },
        { nothing = true },
    ] },
    { done = "rounds" },
    { close = true },
]

[[threads]]
program = [
    { begin = true },
    { let = "area", be = "place" },
    { let = "mapped", be = "file" },
    { while = "!stopped", do = [
        { write = "area + random(pages) * 4K", value = "cpu" },
        { read = "mapped + random(pages) * 4K" },
        { write = "mapped + random(pages) * 4K + 8 * cpu", value = "cpu" },
    ] },
]
"#;

fn shared() -> ProgramRun {
    let workload = Workload::parse("shared.toml", SHARED).unwrap_or_else(|error| panic!("{error}"));
    performance(workload, 3)
}

fn keep_the_contract(policies: impl IntoIterator<Item = Policy>) {
    for policy in policies {
        let report = holds(&ProgramRun { policy, ..shared() });
        let sent = report.engine.get(Counter::Sent);
        assert!(sent > 0, "{policy:?}: no CPU was interrupted");
    }
}

#[test]
fn everything_on_and_everything_off_keep_the_contract() {
    keep_the_contract([Policy::BASELINE, Policy::ALL]);
}

#[test]
#[ignore = "seconds, and all of them together run above: `cargo xtask ci threads`"]
fn each_mechanism_alone_keeps_the_contract() {
    keep_the_contract(Mechanism::ALL.into_iter().map(Policy::only));
}

/// These run in the copy that contains the mutants: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;
    use quell_vm::contract::Clause::{self, C1, C2, C3, C4, C6, C8};

    /// Checks that the mutant is found by one of the clauses that it breaks.
    #[track_caller]
    fn found(name: &str, clauses: &[Clause]) {
        let rounds = std::env::var("QUELL_MUTANT_ROUNDS");
        let rounds =
            rounds.map_or(50, |text| text.parse().expect("QUELL_MUTANT_ROUNDS is a number"));
        for seed in 0..rounds {
            let performance =
                ProgramRun { seed, without: quell_mutants::list::named(name), ..shared() };
            let report = run(&performance).unwrap_or_else(|error| panic!("{}: {error}", name));
            if let Some(violation) = report.violation {
                println!("{}, seed {seed}: {violation}", name);
                assert!(clauses.contains(&violation.clause), "{violation}");
                return;
            }
        }
        panic!("{} was not found", name);
    }

    macro_rules! mutants {
        ($($name:ident: $mutant:literal, breaks $clauses:expr;)*) => {
            $(#[test] fn $name() {
                found($mutant, &$clauses);
            })*
        };
    }

    /// The clauses that break if a CPU still has a stale translation, or is still in an access that should have ended.
    ///
    /// The host may pause a thread between the oracle's check and the store. The store then hits a frame with a new
    /// owner, which should be zero (C8) or is a table (C6).
    const STALE: [Clause; 6] = [C1, C2, C3, C4, C6, C8];

    mutants! {
        a_handler_that_does_not_flush: "HandlerSkipsFlush", breaks STALE;
        a_generation_not_bumped: "SkipGenerationBump", breaks STALE;
        a_wait_left_out: "SkipWait", breaks STALE;
    }
}

#[test]
fn programs_that_wait_for_each_other_are_told() {
    let text = SHARED
        .replace("{ close = true },", "{ barrier = true },")
        .replace("{ while = \"!stopped\", do = [", "{ while = \"0\", do = [");
    let workload = Workload::parse("stuck.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let told = run(&performance(workload, 3)).expect_err("no CPU comes to the barrier");
    let last = text.lines().position(|line| line.contains("{ barrier"));
    let last = 1 + last.expect("it is there");
    let barrier = |failure: &Failure| matches!(failure, Failure::Value { line, why: StatementError::Barrier, .. } if *line as usize == last);
    assert!(matches!(&told, RunError::Failed { failure, .. } if barrier(failure)), "{told}");
}

/// Returns the error of a run in which the first CPU performs one program and the others another.
fn told(first: &str, others: &str) -> String {
    let text = format!(
        "name = \"stuck\"\ntitle = \"t\"\nmechanism = \"S4\"\ncpus = 3\n[memory]\ntouched = \"4K\"\n[figure]\nsays = \"ns\"\n\
         value = \"nanoseconds\"\n[operation]\nis = \"nothing\"\n[[threads]]\nwhen = \"cpu == 0\"\nprogram = [\n{first}\n]\n\
         [[threads]]\nprogram = [\n{others}\n]\n"
    );
    let workload = Workload::parse("stuck.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let told = run(&performance(workload, 3)).expect_err("it comes to no end");
    told.to_string()
}

#[test]
fn loops_that_only_compute_are_told_with_their_lines() {
    let forever = "{ while = true, do = [ { compute = \"1us\" } ] },";
    let computing = told(forever, forever);
    assert!(computing.contains("only computes"), "{computing}");
    assert!(computing.contains("CPU 0 is at line 15"), "{computing}");
    // The others wait for CPU 0.
    let others = told(forever, "{ begin = true },");
    assert!(others.contains("only computes"), "{others}");
    assert!(others.contains("CPU 2 is at line 19"), "{others}");
}

#[test]
fn a_window_that_nobody_closes_is_told_whether_the_others_compute_or_sleep() {
    for asleep in ["false", "true"] {
        let others = format!("{{ begin = true }},\n{{ bystand = \"100us\", asleep = {asleep} }},");
        let told = told("{ begin = true },", &others);
        assert!(told.contains("stuck.toml, CPU"), "{told}");
        assert!(told.contains("line 20: bystand: no other CPU can close the window"), "{told}");
    }
}

#[test]
fn a_file_that_cannot_go_on_says_where() {
    let text = SHARED.replace("{ nothing = true },", "{ read = \"64K\" },");
    let workload = Workload::parse("bad.toml", &text).unwrap_or_else(|error| panic!("{error}"));
    let told = run(&performance(workload, 3)).expect_err("nothing is mapped there");
    let failed = matches!(told, RunError::Failed { cpu: 0, failure: Failure::Access { .. }, .. });
    assert!(failed, "{told}");
    let mut large = Workload::from_name("demand").expect("it is built in");
    large.set("size=8G").expect("a size");
    let told = run(&performance(large, 1)).expect_err("too much");
    assert!(told.to_string().contains("at most 4096 MB: use smaller parameters"), "{told}");
}
