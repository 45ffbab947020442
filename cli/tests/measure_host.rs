//! `quell measure host` as a user runs it: its output, its exit code, and the state of the host afterwards.
//!
//! No test here checks a time. If the machine doesn't allow a benchmark's set-up (no root, no zram), we test the
//! refusal instead.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use crate::command::{Folder, document, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// We compare the state of the host, so runs must not overlap.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Returns the zram devices and the swap areas.
fn swap() -> (BTreeSet<String>, String) {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = names.filter_map(|e| e.file_name().into_string().ok());
    let devices = names.filter(|n| n.starts_with("zram")).collect();
    (devices, fs::read_to_string("/proc/swaps").unwrap())
}

#[test]
fn the_list_names_every_benchmark() {
    let list = run("measure host --list").code(0);
    for name in ["discard", "pageout", "pingpong"] {
        assert!(list.stdout.lines().any(|line| line.starts_with(name)), "{list:?}");
    }
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn a_machine_file_that_was_asked_for_and_does_not_fit_on_the_disk_is_a_failure() {
    let _lock = ONE_AT_A_TIME.lock();
    let full = run("measure host --only discard --machine-file /dev/full --seconds 1");
    full.code(1).stdout("/dev/full: No space");
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn a_missed_target_is_a_failure_of_every_measurement_that_has_targets() {
    let _lock = ONE_AT_A_TIME.lock();
    let engine = run("measure engine --rounds 3 --json");
    assert_eq!(engine.code, Some(i32::from(engine.json()["kept"] == false)));
    let clear = run("measure clear --seconds 1 --max-bytes 64K --json");
    let report = clear.json();
    let missed = |verdict: &Value| verdict["pass"] == false;
    let missed = report["verdicts"].as_array().unwrap().iter().any(missed);
    assert_eq!(clear.code, Some(i32::from(missed)));
    // The names of its fields stay.
    assert!(report["peak_write_gbps"].is_f64() && report["page_by_page_gbps"].is_f64());
    for row in ["rows", "chosen"].map(|list| &report[list][0]) {
        assert!(row["bytes"].is_u64() && row["gbps"].is_f64() && row["strategy"].is_string());
    }
}

#[test]
#[ignore = "counts what others on the host do too: `cargo xtask ci host`"]
fn one_call_flushes_once_where_many_flush_each() {
    let _lock = ONE_AT_A_TIME.lock();
    let report = document("measure host --only discard --seconds 3 --no-machine-file --json");
    assert_eq!(report["schema"], 3);
    let rows = report["benchmarks"][0]["rows"].as_array().unwrap();
    let find = |key: &str| rows.iter().find(|r| r["key"] == key);
    let alone = find("1page/spin0").unwrap();
    assert!(alone["ns"]["median"].as_f64().unwrap() > 0.0);
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
    let before = swap();
    for signal in [Signal::INT, Signal::TERM] {
        let folder = Folder::new();
        let mut command = folder.quell("measure host --only pageout --seconds 60 --json");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        // Without the rights to swap it ends by itself.
        while swap() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let swapping = child.try_wait().unwrap().is_none();
        let _ = kill_process(Pid::from_child(&child), signal);
        let output = child.wait_with_output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        if swapping {
            assert_eq!(output.status.code(), Some(130), "{report}");
            assert_eq!(report["interrupted"], true);
        } else {
            assert!(report["benchmarks"][0]["refused"][0]["reason"].is_string(), "{report}");
        }
        assert_eq!(report["not_restored"], Value::Array(Vec::new()));
        assert_eq!(swap(), before);
    }
}

#[test]
#[ignore = "measures a live host for seconds: `cargo xtask ci host`"]
fn the_machine_file_reads_back_and_reproduces_what_it_was_made_from() {
    let _lock = ONE_AT_A_TIME.lock();
    let folder = Folder::new();
    let report = folder.document("measure host --only discard,pingpong --seconds 3 --json");
    assert_eq!(report["machine_file"]["path"], "quell-host.toml");
    let alone = report["shootdown"]["alone_ns"].as_f64().unwrap();
    let run = folder.document("run dontneed --cpus 1 --json --machine quell-host.toml");
    let modelled = run["value"].as_f64().unwrap();
    if report["machine_file"]["note"].is_null() {
        assert!((modelled / alone - 1.0).abs() < 0.05, "{modelled} for {alone}");
    }
    let predictions = report["predictions"].as_array().unwrap();
    assert!(!predictions.is_empty());
    for one in predictions {
        assert_ne!(one["row"], "1page/spin0", "that one was fitted");
        let [measured, predicted, error] =
            ["measured_ns", "predicted_ns", "error"].map(|key| one[key].as_f64().unwrap());
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
