//! Boots the kernel on every architecture: `cargo xtask ci boots`. `cargo test` leaves these tests out.
//!
//! If the emulator or a toolchain for bare metal is missing, a test prints `SKIPPED` and the reason, and passes. It
//! bypasses the test harness, which hides the output of passing tests. If `QUELL_REQUIRE_BOOT` (or
//! `QUELL_REQUIRE_BOCHS`) is set, the test fails instead.

mod mistakes;

use std::io::Write;
use std::process::{Command, Output};

fn quell(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).output().expect("quell starts")
}

/// Returns whether the architecture can be booted here; prints the reason if not.
fn can_boot(arch: &str) -> bool {
    can(arch, &["--arch", arch], "QUELL_REQUIRE_BOOT")
}

/// Returns whether Bochs can boot the kernel here, like [`can_boot`].
fn can_boot_in_bochs() -> bool {
    can("in Bochs", &["--accel", "bochs"], "QUELL_REQUIRE_BOCHS")
}

fn can(what: &str, arguments: &[&str], required: &str) -> bool {
    let check = quell(&[&["boot", "--check"], arguments].concat());
    if check.status.success() {
        return true;
    }
    let why = String::from_utf8_lossy(&check.stderr).into_owned();
    assert!(std::env::var_os(required).is_none(), "{what} must boot here: {why}");
    // Every run must show this, but the harness captures `eprintln!`.
    let line = format!("SKIPPED: booting {what}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    false
}

/// Boots with these arguments and returns the events of a run that must pass.
fn boot(arch: &str, arguments: &[&str]) -> Vec<serde_json::Value> {
    let mut all = vec!["boot", "--arch", arch, "--json"];
    all.extend(arguments);
    let output = quell(&all);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{all:?} failed\n{text}\n{errors}");
    text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

fn self_test(arch: &str) {
    if !can_boot(arch) {
        return;
    }
    for cpus in ["1", "4", "20"] {
        let events = boot(arch, &["selftest", "--cpus", cpus]);
        let of = |kind: &str| events.iter().filter(|e| e["event"] == kind).collect::<Vec<_>>();
        assert_eq!(of("cpus")[0]["started"].to_string(), cpus, "{arch}");
        let tests = of("test");
        assert!(tests.len() >= 11, "{arch} ran only {} tests", tests.len());
        assert!(tests.iter().all(|test| test["passed"] == true), "{arch}: {tests:?}");
        // The counters belong to this run: a CPU interrupted another if there was another.
        let taken: u64 =
            of("counters").iter().map(|c| c["shootdowns_taken"].as_u64().unwrap()).sum();
        assert_eq!(taken > 0, cpus != "1", "{arch} on {cpus} CPUs took {taken} shootdowns");
    }
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_kernel_passes_its_self_test_on_x86_64() {
    self_test("x86_64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_kernel_passes_its_self_test_on_aarch64() {
    self_test("aarch64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_kernel_passes_its_self_test_on_riscv64() {
    self_test("riscv64");
}

/// Tests code that QEMU can't execute: for PCIDs, INVPCID and the x2APIC. It also tests that flushes end global pages,
/// which Bochs keeps when a root is loaded.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_qemu_lacks_passes_in_bochs() {
    if !can_boot_in_bochs() {
        return;
    }
    let bochs = ["--accel", "bochs"];
    let events = boot("x86_64", &bochs);
    let (ran, failed) = tests(&events);
    assert!(ran >= 11 && failed == 0, "{events:?}");
    let present = last(&events, "boot")["present"].to_string();
    for feature in ["pcid", "invpcid", "x2apic", "global_pages"] {
        assert!(present.contains(feature), "{feature} in {present}");
    }
    let global = events.iter().find(|e| e["name"] == "flushes_end_global_pages");
    let detail = global.expect("the test ran")["detail"].to_string();
    assert!(detail.contains("4 of 4 CPUs kept"), "{detail}");

    let events = boot("x86_64", &[&["conformance"], &bochs[..]].concat());
    assert_eq!(tests(&events), (29, 0), "{events:?}");
    // The run assigned tags and found them again.
    assert!(last(&events, "tags")["kept"].as_u64() > Some(0), "{events:?}");
}

fn tests(events: &[serde_json::Value]) -> (usize, usize) {
    let tests: Vec<_> = events.iter().filter(|e| e["event"] == "test").collect();
    (tests.len(), tests.iter().filter(|test| test["passed"] != true).count())
}

/// Tests that the conformance suite passes, and that there were stale translations to find.
fn conformance(arch: &str) {
    if !can_boot(arch) {
        return;
    }
    for cpus in ["1", "2", "4", "8"] {
        for policy in ["all", "baseline"] {
            let policy = format!("policy={policy}");
            let events = boot(arch, &["conformance", "--cpus", cpus, "--option", &policy]);
            assert_eq!(tests(&events), (29, 0), "{arch} on {cpus} CPUs, {policy}");
            let seen = format!("on {cpus} of {cpus} CPUs");
            let kept = events.iter().find(|e| e["name"] == "stale_translations_can_be_seen");
            assert_eq!(kept.expect("a check")["detail"], seen, "{arch}");
        }
    }
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_contract_holds_on_x86_64() {
    conformance("x86_64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_contract_holds_on_aarch64() {
    conformance("aarch64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_contract_holds_on_riscv64() {
    conformance("riscv64");
}

/// A batch makes one completion barrier instead of one for each page (S0).
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn batches_wait_once_on_aarch64() {
    if !can_boot("aarch64") {
        return;
    }
    let counts = |policy: &str| {
        let policy = format!("policy={policy}");
        let events = boot("aarch64", &["swap", "--option", &policy]);
        let run = events.iter().find(|e| e["event"] == "workload").expect("a result").clone();
        (run["broadcasts"].as_u64().unwrap(), run["completions"].as_u64().unwrap())
    };
    let (broadcasts, completions) = counts("baseline");
    assert!(broadcasts > 0 && broadcasts == completions, "{broadcasts} {completions}");
    let (broadcasts, completions) = counts("S0");
    assert!(broadcasts >= 16 * completions && completions > 0, "{broadcasts} {completions}");
}

/// A shootdown interrupt that no CPU serves must end in a report, not in a hang.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_lost_interrupt_becomes_a_report() {
    for arch in ["x86_64", "aarch64", "riscv64"] {
        if !can_boot(arch) {
            continue;
        }
        let output = quell(&[
            "boot",
            "lost_interrupt",
            "--arch",
            arch,
            "--json",
            "--option",
            "watchdog_ms=300",
        ]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!output.status.success(), "{arch} passed\n{text}");
        let events: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("an event")).collect();
        let of = |kind: &str| events.iter().filter(|e| e["event"] == kind).count();
        assert_eq!(of("watchdog"), 1, "{arch}\n{text}");
        assert_eq!(of("state"), 4, "{arch}: the state of each CPU\n{text}");
        assert!(events.iter().any(|e| e["event"] == "exit" && e["code"] == 4), "{arch}\n{text}");
    }
}

fn last<'e>(events: &'e [serde_json::Value], kind: &str) -> &'e serde_json::Value {
    let of_kind = events.iter().rev().find(|e| e["event"] == kind);
    of_kind.unwrap_or_else(|| panic!("no {kind} in {events:?}"))
}

/// Runs random operations, which must pass, and checks that a seed repeats them.
fn stress(arch: &str) {
    if !can_boot(arch) {
        return;
    }
    let digest = |seed: &str| {
        let events = boot(arch, &["stress", "--rounds", "2", "--seed", seed]);
        let (ran, failed) = tests(&events);
        assert!(ran > 0 && failed == 0, "{arch}: {events:?}");
        let done = last(&events, "progress");
        assert_eq!(done["operations"], 4 * 2 * 1000, "{arch}");
        let nmis = events.iter().filter_map(|e| e["nmis"].as_u64());
        // RISC-V has no non-maskable interrupts, and reports that.
        assert_eq!(nmis.sum::<u64>() > 0, arch != "riscv64", "{arch}: disturbed");
        let probes = "C1 probes_read_what_was_stored";
        let probes = events.iter().find(|e| e["name"] == probes);
        let detail = probes.expect("a check")["detail"].to_string();
        let said = detail.contains("no non-maskable interrupts");
        assert_eq!(said, arch == "riscv64", "{arch}: {detail}");
        done["digest"].as_str().unwrap().to_string()
    };
    let once = digest("5");
    assert_eq!(digest("5"), once, "{arch}");
    assert_ne!(digest("6"), once, "{arch}");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_keeps_every_store_on_x86_64_and_a_seed_replays_it() {
    stress("x86_64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_keeps_every_store_on_aarch64_and_a_seed_replays_it() {
    stress("aarch64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_keeps_every_store_on_riscv64_and_a_seed_replays_it() {
    stress("riscv64");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_command_can_be_had_without_running_it() {
    for arch in ["aarch64", "riscv64"] {
        if !can_boot(arch) {
            continue;
        }
        let output = quell(&["boot", "--arch", arch, "--print-command", "--cpus", "7"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let emulator = format!("qemu-system-{arch}");
        assert!(output.status.success() && text.contains(&emulator), "{text}");
        assert!(text.contains("-smp 7"), "{text}");
    }
}

#[test]
fn wrong_arguments_name_the_culprit() {
    let output = quell(&["boot", "--cpus", "65"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("65") && errors.contains("1..=64"), "{errors}");
    let output = quell(&["boot", "self-test"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    for named in ["'self-test'", "selftest", "dontneed"] {
        assert!(errors.contains(named), "{errors}");
    }
    let output = quell(&["boot", "--kernel", "nowhere", "--arch", "x86_64"]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && !errors.is_empty(), "{errors}");
    for what in [
        &["--arch", "aarch64"][..],
        &["--arch", "riscv64"],
        &["--icount"],
        &["--threads"],
        &["--print-command"],
    ] {
        let output = quell(&[&["boot", "--accel", "bochs"], what].concat());
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && errors.contains("Bochs"), "{what:?}: {errors}");
    }
}
