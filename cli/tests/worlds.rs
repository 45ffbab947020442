//! Every workload file in the repository runs on every machine that is cheap: the clock, the adversary and threads.
//!
//! We search folders, so a new file is tested without a change here. Each file gets parameters as small as possible,
//! because a schedule of the adversary must be short. With their own parameters, the files run in the tests of
//! `quell-threads`, of our kernel and of the comparison with Linux.

use quell::Policy;
use quell_adversary::workload::{WorkloadRun as Schedules, rehearse};
use quell_adversary::{Budget, Case, Exploration, MachineKind, Session, explore};
use quell_clock::built_in;
use quell_model::jobs::Job;
use quell_model::machines;
use quell_model::trial::TrialError;
use quell_threads::vm::ProgramRun as OnThreads;
use quell_workloads::{Unit, Workload};
use rayon::prelude::*;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};

/// Returns the workload files below the repository's folders of workloads and of published tables.
fn files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = ["testbed/workloads/workloads", "model/experiments/held-out"]
        .map(|folder| root.join(folder))
        .to_vec();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "toml") {
                let text = fs::read_to_string(&path).expect("a file of text");
                // The folder of published tables also contains tables and machines.
                if text.contains("\n[[threads]]") {
                    files.push(path);
                }
            }
        }
    }
    files.sort();
    files
}

/// Returns a file's workload on this number of CPUs, with parameters as small as possible.
fn small(path: &Path, cpus: usize) -> Workload {
    let text = fs::read_to_string(path).expect("a file of text");
    let workload = Workload::parse(&path.display().to_string(), &text);
    let mut small = workload.unwrap_or_else(|wrong| panic!("{wrong}"));
    // One parameter may prevent a smaller value of another. So we try refused values a second time.
    for _ in 0..2 {
        for parameter in small.parameters() {
            let few = match parameter.unit {
                Unit::Count => 2,
                Unit::Bytes => 8 << 10,
                _ => continue,
            };
            let now = small.get(parameter.name).expect("one of its parameters");
            let few = few.clamp(parameter.least, parameter.most).max(1);
            let less = iter::successors(Some(few), |value| value.checked_mul(2));
            let accepted = less.take_while(|&value| value < now).find_map(|value| {
                let mut smaller = small;
                let pair = format!("{}={value}", parameter.name);
                smaller.set(&pair).expect("a value in its range");
                smaller.fitted(cpus).ok()
            });
            small = accepted.unwrap_or(small);
        }
    }
    small.fitted(cpus).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[test]
fn every_file_runs_under_the_clock() {
    for path in files() {
        let workload = small(&path, 2);
        // Some workloads need a machine with slow memory.
        let outcome = machines::names().find_map(|name| {
            let machine = built_in(name).expect("a built-in machine");
            let outcome = Job::new(machine.into(), workload, Policy::ALL, 2).run();
            (!matches!(outcome, Err(TrialError::Unfit(_)))).then_some(outcome)
        });
        let outcome = outcome.unwrap_or_else(|| panic!("no machine for {workload:?}"));
        let outcome = outcome.unwrap_or_else(|error| panic!("{workload:?}: {error}"));
        assert_eq!(outcome.run.violations, [], "{workload:?}");
        assert!(outcome.window_nanoseconds > 0.0, "{workload:?}: nothing was measured");
    }
}

#[test]
#[ignore = "seconds: `cargo xtask ci figures`"]
fn every_file_runs_under_the_adversary() {
    // We use every core, because these are the longest of this program's tests.
    files().par_iter().for_each(|path| {
        let workload = small(path, 2);
        let schedules =
            Schedules::new(workload, 2).unwrap_or_else(|why| panic!("{workload:?}: {why}"));
        let scenario = match rehearse(&schedules, workload.name()) {
            Ok(scenario) => scenario,
            // Built-in workloads can be made small, but the sizes of a published table are fixed.
            Err(why) if !workload.is_built_in() && why.ends_with("use smaller parameters") => {
                println!("{workload:?}: {why}");
                return;
            }
            Err(why) => panic!("{workload:?}: {why}"),
        };
        let case = Case {
            scenario: &scenario,
            kind: MachineKind::ALL[0],
            policy: Policy::ALL,
            mistake: None,
        };
        let exploration = Exploration { case, budget: Budget::Schedules(20), seed: 1, depth: 1 };
        let report = explore(&mut Session::new(case), &exploration, |_, _| true);
        if let Some(failure) = report.failure {
            panic!("{workload:?}: {}", failure.violation);
        }
        assert_eq!(report.schedules, 20, "{workload:?}");
    });
}

#[test]
fn every_file_runs_on_threads() {
    for path in files() {
        let workload = small(&path, 2);
        let run = OnThreads { workload, cpus: 2, policy: Policy::ALL, seed: 1, without: None };
        let report = run.run().unwrap_or_else(|error| panic!("{workload:?}: {error}"));
        assert_eq!(report.violation, None, "{workload:?}");
        assert!(report.operations > 0, "{workload:?}: nothing was measured");
    }
}

/// The tests of `quell-threads` have the same for threads.
#[test]
fn a_window_that_nobody_can_close_is_told_with_its_line_by_clock_and_adversary() {
    let text = include_str!("../../testbed/workloads/workloads/munmap.toml");
    assert!(text.contains("{ close = true }"));
    let text = text.replace("{ close = true }", "{ nothing = true }");
    let line = text.lines().position(|line| line.contains("{ bystand"));
    let line = 1 + line.expect("the others stand by");
    let mut workload = Workload::parse("open.toml", &text).expect("a workload");
    workload.set("iterations=1").expect("one of its parameters");
    let machine = built_in("haswell-server").expect("a built-in machine");
    let job = Job::new(machine.into(), workload, Policy::ALL, 2);
    let clock = job.run().expect_err("it does not end").to_string();
    let schedules = Schedules::new(workload, 2).expect("schedules");
    let adversary = rehearse(&schedules, workload.name()).expect_err("it does not end");
    let expected = format!("line {line}: bystand: no other CPU can close the window");
    for told in [clock, adversary] {
        assert!(told.contains(&expected), "{told}");
    }
}
