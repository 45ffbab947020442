//! `quell record` of programs that are not quell's.
//!
//! Needs root (or CAP_PERFMON and a readable tracefs) and the program, which `scripts/record-programs` installs. Where one is missing the
//! test says `SKIPPED`, past the test harness, and passes. Everything is recorded, not stretches from which the rest is estimated: on a busy
//! host these might miss the program.
#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn skipped(what: &str, why: &str) {
    // Not `eprintln!`, which the harness captures: this is to be seen in every run.
    let line = format!("SKIPPED: recording {what}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../quell-record/programs")
}

fn runs(command: &str, argument: &str) -> bool {
    let output = Command::new(command).arg(argument).output();
    output.is_ok_and(|output| output.status.success())
}

/// What was recorded of the command, with these variables set; why not, if nothing can be recorded here.
fn recorded(command: &[&str], variables: &[(&str, &str)]) -> Result<Value, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args([
            "record",
            "--json",
            "--replay",
            "--overhead",
            "1000",
            "--",
            "env",
        ])
        .args(
            variables
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        )
        .args(command)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("cannot record") {
        return Err(errors);
    }
    assert!(output.status.success(), "{errors}");
    // The command's own output comes first.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = text.find('{').map_or("", |begin| &text[begin..]);
    Ok(serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// How many flushes a program made by that call, or for that reason of the kernel's.
fn flushes(recorded: &Value, program: &str, call: &str) -> u64 {
    let name = format!("[{program}]");
    let is = |site: &&Value| {
        let stack = site["stack"].as_array().unwrap();
        site["call"] == call && stack.last().unwrap() == name.as_str()
    };
    let sites = recorded["sites"].as_array().unwrap().iter().filter(is);
    sites.map(|site| site["requests"].as_u64().unwrap()).sum()
}

#[test]
#[ignore = "records a live host for seconds: `cargo xtask ci host`"]
fn what_mimalloc_gives_back_at_once_is_laid_at_its_madvise() {
    let what = "mimalloc";
    let libraries = Command::new("ldconfig").arg("-p").output();
    let libraries = libraries.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let libraries = libraries.unwrap_or_default();
    let library = libraries
        .lines()
        .find(|line| line.contains("libmimalloc.so"));
    let Some((_, library)) = library.and_then(|line| line.split_once("=> ")) else {
        return skipped(
            what,
            "there is no libmimalloc: apt-get install libmimalloc2.0",
        );
    };
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("allocator");
    let compiled = Command::new("cc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"])
        .arg(&program)
        .arg(programs().join("allocator.c"))
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skipped(what, "there is no C compiler");
    }
    let run = |delay| {
        let variables = [("LD_PRELOAD", library), ("MIMALLOC_DECOMMIT_DELAY", delay)];
        recorded(&[program.to_str().unwrap(), "2"], &variables)
    };
    let (at_once, late) = match (run("0"), run("1000")) {
        (Ok(at_once), Ok(late)) => (at_once, late),
        (Err(why), _) | (_, Err(why)) => return skipped(what, &why),
    };
    let of = |recorded| flushes(recorded, "allocator", "madvise");
    assert!(of(&at_once) > 100, "{at_once}");
    assert!(of(&late) * 10 < of(&at_once), "{late}");
    assert!(at_once["replay"].is_object(), "{at_once}");
}

#[test]
#[ignore = "records a live host for seconds: `cargo xtask ci host`"]
fn what_redis_copies_during_a_snapshot_is_laid_at_the_fork() {
    let what = "Redis";
    if !["redis-server", "redis-cli", "redis-benchmark"]
        .iter()
        .all(|name| runs(name, "--version"))
    {
        return skipped(
            what,
            "there is no Redis: apt-get install redis-server redis-tools",
        );
    }
    let script = programs().join("redis.sh");
    match recorded(&[script.to_str().unwrap(), "3", "1"], &[]) {
        Ok(recorded) => assert!(
            flushes(&recorded, "redis-server", "copy-on-write") > 0,
            "{recorded}"
        ),
        Err(why) => skipped(what, &why),
    }
}
