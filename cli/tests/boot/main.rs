//! Boots the kernel on every architecture: `cargo xtask ci boots`. `cargo test` leaves these tests out.
//!
//! If the emulator or a toolchain for bare metal is missing, a test prints `SKIPPED` and the reason, and passes. If
//! `QUELL_REQUIRE_BOOT` (or `QUELL_REQUIRE_BOCHS`) is set, the test fails instead.

mod mistakes;

use crate::command::{run, skipped};
use serde_json::Value;

/// Returns whether the architecture can be booted here; prints the reason if not.
pub fn can_boot(arch: &str) -> bool {
    can(arch, &format!("--arch {arch}"), "QUELL_REQUIRE_BOOT")
}

fn can(what: &str, options: &str, required: &str) -> bool {
    let check = run(&format!("boot --check {options}"));
    if check.code == Some(0) {
        return true;
    }
    assert!(std::env::var_os(required).is_none(), "{what} must boot here: {}", check.stderr);
    skipped(&format!("booting {what}"), &check.stderr);
    false
}

/// Returns the architectures that can be booted here.
fn archs() -> impl Iterator<Item = &'static str> {
    ["x86_64", "aarch64", "riscv64"].into_iter().filter(|arch| can_boot(arch))
}

/// Returns the events that a boot prints.
fn events(stdout: &str) -> Vec<Value> {
    stdout.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
}

/// Boots with these options and returns the events of a run that must pass.
pub fn boot(arch: &str, options: &str) -> Vec<Value> {
    events(&run(&format!("boot --arch {arch} --json {options}")).code(0).stdout)
}

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["event"] == kind).collect()
}

pub fn last<'e>(events: &'e [Value], kind: &str) -> &'e Value {
    of(events, kind).pop().unwrap_or_else(|| panic!("no {kind} in {events:?}"))
}

/// Returns the event with this name.
fn named<'e>(events: &'e [Value], name: &str) -> &'e Value {
    let found = events.iter().find(|event| event["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {events:?}"))
}

/// Returns the numbers of tests that ran and that failed.
fn tests(events: &[Value]) -> (usize, usize) {
    let tests = of(events, "test");
    (tests.len(), tests.iter().filter(|test| test["passed"] != true).count())
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_kernel_passes_its_self_test() {
    for arch in archs() {
        for cpus in ["1", "4", "20"] {
            let events = boot(arch, &format!("selftest --cpus {cpus}"));
            assert_eq!(of(&events, "cpus")[0]["started"].to_string(), cpus, "{arch}");
            let (ran, failed) = tests(&events);
            assert!(ran >= 11 && failed == 0, "{arch}: {events:?}");
            // The counters belong to this run: a CPU interrupted another if there was another.
            let counters = of(&events, "counters");
            let taken = counters.iter().map(|of| of["shootdowns_taken"].as_u64().unwrap());
            assert_eq!(taken.sum::<u64>() > 0, cpus != "1", "{arch} on {cpus} CPUs");
        }
    }
}

/// Tests code that QEMU can't execute: for PCIDs, INVPCID and the x2APIC. It also tests that flushes end global pages,
/// which Bochs keeps when a root is loaded.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn what_qemu_lacks_passes_in_bochs() {
    if !can("in Bochs", "--accel bochs", "QUELL_REQUIRE_BOCHS") {
        return;
    }
    let events = boot("x86_64", "--accel bochs");
    let (ran, failed) = tests(&events);
    assert!(ran >= 11 && failed == 0, "{events:?}");
    let present = last(&events, "boot")["present"].to_string();
    for feature in ["pcid", "invpcid", "x2apic", "global_pages"] {
        assert!(present.contains(feature), "{feature} in {present}");
    }
    let detail = named(&events, "flushes_end_global_pages")["detail"].to_string();
    assert!(detail.contains("4 of 4 CPUs kept"), "{detail}");

    let events = boot("x86_64", "conformance --accel bochs");
    assert_eq!(tests(&events), (29, 0), "{events:?}");
    // The run assigned tags and found them again.
    assert!(last(&events, "tags")["kept"].as_u64() > Some(0), "{events:?}");
}

/// Tests that the conformance suite passes, and that there were stale translations to find.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_contract_holds() {
    for arch in archs() {
        for cpus in [1, 2, 4, 8] {
            for policy in ["all", "baseline"] {
                let run = format!("conformance --cpus {cpus} --option policy={policy}");
                let events = boot(arch, &run);
                assert_eq!(tests(&events), (29, 0), "{arch}, {run}");
                let kept = named(&events, "stale_translations_can_be_seen");
                assert_eq!(kept["detail"], format!("on {cpus} of {cpus} CPUs"), "{arch}");
            }
        }
    }
}

/// A batch makes one completion barrier instead of one for each page (S0).
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn batches_wait_once_on_aarch64() {
    if !can_boot("aarch64") {
        return;
    }
    let counts = |policy: &str| {
        let events = boot("aarch64", &format!("swap --option policy={policy}"));
        let run = last(&events, "workload");
        ["broadcasts", "completions"].map(|count| run[count].as_u64().unwrap())
    };
    let [broadcasts, completions] = counts("baseline");
    assert!(broadcasts > 0 && broadcasts == completions, "{broadcasts} {completions}");
    let [broadcasts, completions] = counts("S0");
    assert!(broadcasts >= 16 * completions && completions > 0, "{broadcasts} {completions}");
}

/// A shootdown interrupt that no CPU serves must end in a report, not in a hang.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_lost_interrupt_becomes_a_report() {
    for arch in archs() {
        let lost = format!("boot lost_interrupt --arch {arch} --json --option watchdog_ms=300");
        let output = run(&lost).code(1);
        let events = events(&output.stdout);
        assert_eq!(of(&events, "watchdog").len(), 1, "{output:?}");
        assert_eq!(of(&events, "state").len(), 4, "the state of each CPU: {output:?}");
        assert_eq!(last(&events, "exit")["code"], 4, "{output:?}");
    }
}

/// Runs random operations, which must pass, and checks that a seed repeats them.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn stress_keeps_every_store_and_a_seed_replays_it() {
    for arch in archs() {
        let digest = |seed: u32| {
            let events = boot(arch, &format!("stress --rounds 2 --seed {seed}"));
            let (ran, failed) = tests(&events);
            assert!(ran > 0 && failed == 0, "{arch}: {events:?}");
            let done = last(&events, "progress");
            assert_eq!(done["operations"], 4 * 2 * 1000, "{arch}");
            let nmis = events.iter().filter_map(|e| e["nmis"].as_u64());
            // RISC-V has no non-maskable interrupts, and reports that.
            assert_eq!(nmis.sum::<u64>() > 0, arch != "riscv64", "{arch}: disturbed");
            let detail = named(&events, "C1 probes_read_what_was_stored")["detail"].to_string();
            let said = detail.contains("no non-maskable interrupts");
            assert_eq!(said, arch == "riscv64", "{arch}: {detail}");
            done["digest"].to_string()
        };
        let once = digest(5);
        assert_eq!(digest(5), once, "{arch}");
        assert_ne!(digest(6), once, "{arch}");
    }
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn a_command_can_be_had_without_running_it() {
    for arch in archs() {
        let printed = run(&format!("boot --arch {arch} --print-command --cpus 7")).code(0);
        printed.stdout(&format!("qemu-system-{arch}")).stdout("-smp 7");
    }
}
