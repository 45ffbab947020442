//! `quell record` and `quell try` of programs that aren't quell's.
//!
//! `scripts/record-programs` installs, records and tries them, and prints the tables of `docs/programs.md`. If a program
//! isn't available, or the host can't record, the tests print `SKIPPED`, past the test harness, and pass.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::command::{Ended, Folder, ended, skipped};
use serde_json::Value;

/// We record one program at a time, because a recording would contain the other's load.
static ALONE: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs the script. Returns `None` without Python.
fn script(arguments: &[&str]) -> Option<Ended> {
    let mut python = Command::new("python3");
    let python = python.arg(root().join("scripts/record-programs"));
    python.args(arguments).output().ok().map(Ended::from)
}

#[test]
fn the_page_shows_the_recorded_programs_as_the_script_prints_them() {
    let Some(printed) = script(&["print"]) else {
        return skipped("the tables of docs/programs.md", "there is no python3");
    };
    let printed = printed.code(0).stdout;
    let page = std::fs::read_to_string(root().join("docs/programs.md")).unwrap();
    assert!(printed.lines().count() > 12, "{printed}");
    let is_missing = |line: &&str| !page.lines().any(|there| there == *line);
    let missing: Vec<_> = printed.lines().filter(is_missing).collect();
    assert!(missing.is_empty(), "not there: {missing:#?}");
}

/// Doesn't try the advice, because a busy host blurs times. The page has that from quiet cores.
#[test]
#[ignore = "records a live host for minutes: `cargo xtask ci host`"]
fn interrupts_of_each_program_are_attributed_and_its_first_advice_is_the_known_one() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new();
    let to = folder.join("results.json");
    let (to, quell) = (to.to_str().unwrap(), env!("CARGO_BIN_EXE_quell"));
    let arguments = ["measure", "--pairs", "1", "--seconds", "0", "--to", to, "--quell", quell];
    let Some(output) = script(&arguments).filter(|output| output.code != Some(3)) else {
        return skipped("the recorded programs", "no python3, root or tracefs");
    };
    for line in output.code(0).stderr.lines().filter(|line| line.starts_with("SKIPPED")) {
        skipped("a recorded program", line);
    }
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let known = read(&root().join("profiler/record/programs/results.json"));
    let found = read(Path::new(to));
    let of = |all: &Value, name: &Value| {
        let mut all = all["programs"].as_array().unwrap().iter();
        all.find(|program| program["name"] == *name).cloned()
    };
    let mut wrong = Vec::new();
    for program in found["programs"].as_array().unwrap() {
        let [attributed, counted] = [0, 1].map(|at| program["attributed"][at].as_f64().unwrap());
        // We read `/proc/interrupts` a little before the first event and a little after the last one.
        if (attributed - counted).abs() > 0.05 * counted + 20.0 {
            wrong.push(format!("{}: {attributed} of {counted}", program["name"]));
        }
        let known = of(&known, &program["name"]).unwrap();
        if known["advice"]["kind"] != program["advice"]["kind"] {
            wrong.push(format!("{}: {} was {}", program["name"], program["said"], known["said"]));
        }
    }
    // Nine of ten recordings agree, so one of twelve programs may not.
    assert!(wrong.len() <= 1, "{wrong:#?}");
}

/// On some kernels these interrupts use the vector of shootdowns. On all kernels they are counted in the same row of
/// `/proc/interrupts` as other function calls.
#[test]
#[ignore = "records a live host for seconds: `cargo xtask ci host`"]
fn what_a_program_sends_by_membarrier_is_told_apart_from_shootdowns() {
    const MANY: f64 = 1000.0;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let what = "a program that calls membarrier";
    if !Path::new("/sys/kernel/tracing/events/csd/csd_queue_cpu").exists() {
        return skipped(what, "this kernel does not say which functions its interrupts call");
    }
    let program = root().join("profiler/record/programs/barriers.py");
    let folder = Folder::new();
    let mut record = folder.quell("record --json --overhead 100 -o recording -- python3");
    let output = ended(record.arg(program).arg("3"));
    if output.code != Some(0) {
        return skipped(what, &output.stderr);
    }
    let told = output.json();
    // The program prints how many barriers there were.
    let barriers: f64 = output.stderr.split_whitespace().next().unwrap().parse().unwrap();
    let others = told["others"].as_array().unwrap();
    let sent = others.iter().find(|other| other["cause"] == "membarrier");
    let sent = sent.map_or(0.0, |sent| sent["count"].as_f64().unwrap());
    if sent < MANY {
        let few = format!("it sent {sent} interrupts: its threads did not run side by side");
        return skipped(what, &few);
    }
    // Some of the time, both threads run on one CPU, or the other thread is preempted.
    assert!(sent <= barriers * 1.05, "{told}");
    let shootdowns = told["interrupts"].as_f64().unwrap();
    assert!(shootdowns * 2.0 < sent, "{told}");
    let shown = folder.run("record --import recording").stdout;
    let is_told = |line: &str| line.starts_with("Not TLB") && line.contains("for membarrier");
    assert!(shown.lines().any(is_told), "{shown}");
}
