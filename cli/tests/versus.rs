//! Compares quell with Linux in the emulator.
//!
//! If the emulator, a Linux kernel or a toolchain for bare metal is missing, a test prints `SKIPPED` and the reason,
//! and passes. If `QUELL_REQUIRE_LINUX` is set (or `QUELL_REQUIRE_LINUX_BUILD`, for a Linux with the engine), it fails
//! instead. We use a kernel fetched by `quell versus linux --fetch`, or the one in `QUELL_LINUX`.

use quell_boot::linux::Flavour;
use serde_json::Value;
use std::process::{Command, Output};

fn quell(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(["versus", "linux"]).args(arguments);
    if let Some(kernel) = std::env::var_os("QUELL_LINUX") {
        command.arg("--kernel").arg(kernel);
    }
    command.output().expect("quell starts")
}

/// Returns whether the comparison can run here; prints the reason if not.
fn can_compare() -> bool {
    let check = quell(&["--check"]);
    if check.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(
        std::env::var_os("QUELL_REQUIRE_LINUX").is_none(),
        "the comparison must run here: {why}"
    );
    eprintln!("SKIPPED: comparing with Linux: {why}");
    false
}

fn compare(arguments: &[&str]) -> Value {
    let output = quell(&[arguments, &["--json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}\n{text}\n{errors}");
    serde_json::from_str(&text).expect("a JSON document")
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn linux_and_quell_are_compared_by_the_same_counts_each_time() {
    if !can_compare() {
        return;
    }
    let arguments = ["--quick", "--workload", "dontneed", "--cpus", "2"];
    let first = compare(&arguments);
    let row = |variant: &str| {
        let rows = first["rows"].as_array().expect("rows");
        rows.iter()
            .find(|row| row["variant"] == variant)
            .unwrap_or_else(|| panic!("no row {variant} in {first}"))
    };
    let count = |variant: &str, side: &str, key: &str| {
        row(variant)[side][key].as_f64().unwrap_or_else(|| panic!("no {key} of {side} in {first}"))
    };
    // The other CPU runs the process, so each discarded page interrupts it and makes it invalidate.
    for side in ["linux", "quell"] {
        let interrupts = count("others busy", side, "interrupts");
        assert!((0.98..1.02).contains(&interrupts), "{side}: {interrupts}");
        let remote = count("others busy", side, "remote_invalidations");
        assert!((0.98..1.02).contains(&remote), "{side}: {remote}");
        // A sleeping CPU isn't interrupted.
        assert!(count("others asleep", side, "interrupts") < 0.2, "{side}");
        assert!(count("others busy", side, "instructions") > 1_000.0, "{side}");
    }
    // Instructions are counted, so a run repeats itself.
    assert_eq!(compare(&arguments), first);
}

/// The user's own files, and files written from recordings, are compared like built-in workloads.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn a_workload_file_and_a_recording_run_on_both_sides() {
    if !can_compare() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    // This is the example in the documents.
    let document = include_str!("../../docs/workloads.md");
    let mine = document.split("```toml\n").nth(1).expect("an example");
    let mine = mine.split("```").next().expect("its end");
    std::fs::write(place("mine.toml"), mine).expect("a file");
    let perf = include_str!("../../profiler/record/tests/recordings/perf.txt");
    std::fs::write(place("perf.txt"), perf).expect("a file");
    let recorded = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["record", "--import", &place("perf.txt")])
        .args(["--program", "churn", "--workload", &place("recorded.toml")])
        .output()
        .expect("quell starts");
    assert!(recorded.status.success(), "{recorded:?}");
    let files = format!("{},{}", place("mine.toml"), place("recorded.toml"));
    let result = compare(&["--quick", "--cpus", "2", "--workload", &files]);
    let rows = result["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{result}");
    // In the first file an operation is a page, and one call discards sixteen. In the second an operation is a call,
    // and some calls interrupt no CPU.
    for (row, name, interrupts) in
        [(&rows[0], "mine", 0.06..0.07), (&rows[1], "recorded", 0.8..0.95)]
    {
        assert_eq!(row["workload"], name);
        for side in ["linux", "quell"] {
            let count = row[side]["interrupts"].as_f64().expect("a count");
            assert!(interrupts.contains(&count), "{side}: {row}");
            let instructions = row[side]["instructions"].as_f64().expect("a count");
            assert!(instructions > 1_000.0, "{side}: {row}");
        }
    }
}

#[test]
fn a_mistake_is_named_before_anything_is_built_or_booted() {
    let output = quell(&["--workload", "dontned"]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("dontned") && errors.contains("dontneed"), "{errors}");

    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["versus", "linux", "--kernel", env!("CARGO_BIN_EXE_quell")])
        .output()
        .expect("quell starts");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // If the emulator is missing, that error comes first.
    let known = ["not an image of a Linux kernel", "is not installed"];
    assert!(known.iter().any(|known| errors.contains(known)), "{errors}");
}

/// Returns the two kernels that `kernels/linux/run both` builds, if they exist; prints a message if not.
fn kernels() -> Option<[String; 2]> {
    let images = [Flavour::Stock, Flavour::Quell].map(Flavour::image);
    if let Some(missing) = images.iter().find(|image| !image.is_file()) {
        let missing = missing.display();
        assert!(
            std::env::var_os("QUELL_REQUIRE_LINUX_BUILD").is_none(),
            "{missing} must be here: kernels/linux/run both"
        );
        eprintln!(
            "SKIPPED: Linux with the engine: there is no {missing}: kernels/linux/run both makes it"
        );
        return None;
    }
    Some(images.map(|image| image.to_string_lossy().into_owned()))
}

/// Linux on quell swaps dirty pages out with a tenth of the interrupts, and every run has the same counts.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn linux_on_quell_interrupts_less_each_time() {
    let Some([stock, on_quell]) = kernels() else {
        return;
    };
    let run = || {
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["versus", "linux", "--kernel", &stock, "--on-quell", &on_quell])
            .args(["--quick", "--workload", "dontneed,swap", "--cpus", "2", "--json"])
            .output()
            .expect("quell starts");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        output.stdout
    };
    let first = run();
    let report: Value = serde_json::from_slice(&first).expect("a JSON document");
    let count = |workload: &str, variant: &str, side: &str| {
        let rows = report["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["workload"] == workload && row["variant"] == variant);
        row.and_then(|row| row[side]["interrupts"].as_f64())
            .unwrap_or_else(|| panic!("no {workload} ({variant}) of {side} in {report}"))
    };
    let dirty = |side| count("swap", "dirty, others busy", side);
    assert!(dirty("linux") > 0.5, "{report}");
    assert!(dirty("linux_on_quell") <= dirty("linux") / 10.0, "{report}");
    // With one page at a time there is nothing to batch.
    let one = |side| count("dontneed", "others busy", side);
    assert!(one("linux_on_quell") <= one("linux") * 1.05, "{report}");
    // QEMU delivers the timers of idle CPUs from its own thread. If the host gives that thread no time, a run may
    // differ.
    let second = run();
    assert!(second == first || [first, second].contains(&run()), "three runs differ");
}
