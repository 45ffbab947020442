//! `quell measure host` as a user runs it: its output, its exit code, and the state of the host afterwards.
//!
//! No test here checks a time. If the machine doesn't allow a benchmark's set-up (no root, no zram), we test the
//! refusal instead.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;

/// We compare the state of the host, so runs must not overlap.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command
        .args(["measure", "host"])
        .args(args)
        // Machine files are written to the current directory, and no other test may find them there.
        .current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn zram_devices() -> BTreeSet<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = names.filter_map(|e| e.file_name().into_string().ok());
    names.filter(|n| n.starts_with("zram")).collect()
}

/// Waits for a condition, and returns whether it held before the child ended.
fn eventually(child: &mut Child, mut condition: impl FnMut() -> bool) -> bool {
    loop {
        if condition() {
            return true;
        }
        if child.try_wait().is_ok_and(|status| status.is_some()) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal, which fails only if the child has already ended.
fn interrupt(child: &Child, signal: &str) {
    Command::new("kill")
        .args([signal, &child.id().to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap();
}

#[test]
fn the_list_names_every_benchmark() {
    let output = quell(&["--list"]).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["discard", "pageout", "pingpong"] {
        assert!(text.lines().any(|l| l.starts_with(name)), "{text}");
    }
}

#[test]
fn an_unknown_benchmark_is_a_usage_error_that_names_the_others() {
    let output = quell(&["--only", "discard,disgard"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("disgard") && text.contains("pingpong"), "{text}");
}

#[test]
fn a_machine_file_that_cannot_be_made_or_written_is_refused_before_anything_is_measured() {
    for (args, why) in [
        (["--only", "pingpong", "--machine-file", "f.toml"], "discard"),
        (["--only", "discard", "--machine-file", "no/f.toml"], "no/f.toml"),
    ] {
        let output = quell(&args).args(["--seconds", "1"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("--machine-file") && text.contains(why), "{text}");
    }
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn a_machine_file_that_was_asked_for_and_does_not_fit_on_the_disk_is_a_failure() {
    let _lock = ONE_AT_A_TIME.lock();
    let args = ["--only", "discard", "--machine-file", "/dev/full"];
    let output = quell(&args).args(["--seconds", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8(output.stdout).unwrap().contains("/dev/full: No space"));
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn a_missed_target_is_a_failure_of_every_measurement_that_has_targets() {
    let _lock = ONE_AT_A_TIME.lock();
    let measured = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        let output = command.arg("measure").args(args).arg("--json").output();
        let output = output.unwrap();
        (output.status.code(), json(&output))
    };
    let (code, engine) = measured(&["engine", "--rounds", "3"]);
    assert_eq!(code, Some(i32::from(engine["kept"] == false)));
    let (code, clear) = measured(&["clear", "--seconds", "1", "--max-bytes", "64K"]);
    let missed = |verdict: &Value| verdict["pass"] == false;
    let missed = clear["verdicts"].as_array().unwrap().iter().any(missed);
    assert_eq!(code, Some(i32::from(missed)));
}

#[test]
#[ignore = "counts what others on the host do too: `cargo xtask ci host`"]
fn one_call_flushes_once_where_many_flush_each() {
    let _lock = ONE_AT_A_TIME.lock();
    let output = quell(&["--only", "discard", "--seconds", "3", "--json"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = json(&output);
    assert_eq!(report["schema"], 3);
    let rows = report["benchmarks"][0]["rows"].as_array().unwrap();
    let find = |key: &str| rows.iter().find(|r| r["key"] == key);
    assert!(find("1page/spin0").unwrap()["ns"]["median"].as_f64().unwrap() > 0.0);
    let alone = find("1page/spin0").unwrap();
    let rounds = alone["round_medians"].as_array().unwrap();
    assert_eq!(report["benchmarks"][0]["rounds"], rounds.len());
    assert!(rounds.len() > 1, "the price rests on it: several rounds");
    let quiet = &alone["quiet"];
    assert_eq!(report["shootdown"]["alone_ns"], quiet["median"]);
    assert!(quiet["samples"].as_u64() <= alone["ns"]["samples"].as_u64());
    let shared = report["shared_core"].as_f64().unwrap();
    assert!((0.0..1.0).contains(&shared), "the fastest had its core");
    let keys: BTreeSet<_> = rows.iter().map(|r| r["key"].as_str()).collect();
    assert_eq!(keys.len(), rows.len(), "rounds are merged");
    let interrupts = |key: &str| find(key)?["tlb_interrupts_per_op"].as_f64();
    let (single, batched) = ("32ranges/madvise/spin1", "32ranges/spanning_madvise/spin1");
    if let (Some(many @ 16.0..), Some(one)) = (interrupts(single), interrupts(batched)) {
        assert!(one < many / 4.0, "one call interrupts once: {one} against {many}");
    }
    let price = &report["shootdown"];
    if find("1page/spin1").is_none() {
        assert!(price["ns"].is_null() && price["note"].is_string(), "{price}");
    }
}

#[test]
#[ignore = "counts what others on the host do too: `cargo xtask ci host`"]
fn page_out_leaves_no_device_after_an_interrupt() {
    let _lock = ONE_AT_A_TIME.lock();
    let (devices, swaps) = (zram_devices(), fs::read_to_string("/proc/swaps").unwrap());
    for signal in ["-INT", "-TERM"] {
        let mut child = quell(&["--only", "pageout", "--seconds", "60", "--json"]).spawn().unwrap();
        let swapping = eventually(&mut child, || {
            fs::read_to_string("/proc/swaps").is_ok_and(|now| now != swaps)
        });
        interrupt(&child, signal);
        let output = child.wait_with_output().unwrap();
        let report = json(&output);
        if swapping {
            assert_eq!(output.status.code(), Some(130), "{report}");
            assert_eq!(report["interrupted"], true);
        } else {
            assert!(report["benchmarks"][0]["refused"][0]["reason"].is_string(), "{report}");
        }
        assert_eq!(report["not_restored"], Value::Array(Vec::new()));
        assert_eq!(zram_devices(), devices);
        assert_eq!(fs::read_to_string("/proc/swaps").unwrap(), swaps);
    }
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn the_machine_file_reads_back_and_reproduces_what_it_was_made_from() {
    let _lock = ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().unwrap();
    let args = ["--only", "discard,pingpong", "--seconds", "3", "--json"];
    let output = quell(&args).current_dir(dir.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report = json(&output);
    assert_eq!(report["machine_file"]["path"], "quell-host.toml");
    let alone = report["shootdown"]["alone_ns"].as_f64().unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_quell"))
        .current_dir(dir.path())
        .args(["run", "dontneed", "--cpus", "1", "--json"])
        .args(["--machine", "quell-host.toml"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let modelled = json(&run)["value"].as_f64().unwrap();
    if report["machine_file"]["note"].is_null() {
        assert!((modelled / alone - 1.0).abs() < 0.05, "{modelled} for {alone}");
    }
    let predictions = report["predictions"].as_array().unwrap();
    assert!(!predictions.is_empty());
    for one in predictions {
        assert_ne!(one["row"], "1page/spin0", "that one was fitted");
        let [measured, predicted] =
            ["measured_ns", "predicted_ns"].map(|key| one[key].as_f64().unwrap());
        let error = one["error"].as_f64().unwrap();
        assert!((error - (predicted / measured - 1.0)).abs() < 1e-6, "{one}");
        match one["within"].as_bool() {
            Some(within) => {
                assert_eq!(within, error.abs() <= 0.30, "{one}");
                assert_eq!(one["why"].is_string(), !within, "{one}");
            }
            None => assert!(one["why"].as_str().unwrap().contains("judged"), "{one}"),
        }
    }
}
