//! The clock's counts agree with those of the booted kernel, for the same workload and policy.
//!
//! We compare shootdown interrupts, invalidations, broadcasts and waits for broadcasts in the measured window. These
//! workloads do a fixed amount of work, so their counts don't depend on time, and QEMU counts instructions, so the
//! kernel repeats itself. `docs/boot.md` explains the exceptions.
//!
//! If an architecture can't be booted, its test prints `SKIPPED`, or fails if `QUELL_REQUIRE_BOOT` is set.

use crate::boot::{boot, can_boot, last};
use crate::command::document;
use serde_json::Value;

const LIMIT: f64 = 0.05;

/// Interrupts, invalidations of single pages, whole invalidations, broadcasts, and waits for broadcasts.
type Counts = [(&'static str, u64); 5];

fn sum(counts: &Value, names: &[&str]) -> u64 {
    let count = |name: &&str| counts[*name].as_u64().expect("a count");
    names.iter().map(count).sum()
}

/// Returns the booted kernel's counts.
fn booted(arch: &str, workload: &str, parameters: &str, cpus: u32, policy: &str) -> Counts {
    let parameters = parameters.replace('=', ":").replace(' ', ",");
    let run = boot(
        arch,
        &format!(
            "{workload} --cpus {cpus} --icount --option policy={policy} \
             --option parameters={parameters}"
        ),
    );
    let run = last(&run, "workload");
    [
        ("interrupts", sum(run, &["shootdowns_taken"])),
        ("pages", sum(run, &["local_pages"])),
        ("whole", sum(run, &["local_tags", "local_all", "loads_flushed"])),
        ("broadcasts", sum(run, &["broadcasts"])),
        ("waits", sum(run, &["completions"])),
    ]
}

/// Returns the clock's counts. `machine` is its name, and may be followed by options that change it.
fn modelled(machine: &str, workload: &str, parameters: &str, cpus: u32, policy: &str) -> Counts {
    let parameters = parameters.replace(' ', " --param ");
    let run = document(&format!(
        "run {workload} --machine {machine} --cpus {cpus} --policy {policy} --json \
         --param {parameters}"
    ));
    let counts = &run["machine_counts"];
    [
        ("interrupts", sum(counts, &["interrupts_taken"])),
        ("pages", sum(counts, &["invalidated_pages"])),
        ("whole", sum(counts, &["invalidated_tags", "invalidated_all"])),
        ("broadcasts", sum(counts, &["broadcasts"])),
        ("waits", sum(counts, &["broadcast_waits"])),
    ]
}

/// The runs to compare: workload, parameters, CPUs.
const RUNS: &[(&str, &str, u32)] = &[
    ("dontneed", "iterations=50", 4),
    ("dontneed", "iterations=50 pages=40", 2),
    ("swap", "rounds=3", 4),
    ("swap", "rounds=3 clean=yes", 8),
    ("migrate", "rounds=2 size=2M", 4),
    ("demand", "size=4M page=4K", 4),
    ("pingpong", "switches=200", 1),
    ("protect", "iterations=50", 4),
    ("munmap", "iterations=50", 2),
    ("scattered", "iterations=10", 4),
    ("readers", "processes=1 threads=1 size=6M fast=2M slow=3M ahead=64 compute=0", 1),
];

/// Workloads that we don't compare. They run for a fixed time instead of a fixed amount of work, or their counts depend
/// on the order in which CPUs flush or fault.
const NOT_COMPARED: &[&str] = &["fileio", "crowd", "collector", "promote"];

#[test]
fn every_workload_is_compared_or_said_not_to_be() {
    for workload in quell_workloads::Workload::all() {
        let name = workload.name();
        let compared = RUNS.iter().any(|(known, ..)| *known == name);
        assert!(
            compared != NOT_COMPARED.contains(&name),
            "{name} belongs either into RUNS or, with the reason in docs/boot.md, into NOT_COMPARED"
        );
    }
}

/// Compares counts on one architecture; `slow` is a machine with slow memory, if there is one.
fn agree(arch: &str, machine: &str, slow: Option<&str>, tags: bool) {
    if !can_boot(arch) {
        return;
    }
    let mut something = 0;
    for &(workload, parameters, cpus) in RUNS {
        for policy in ["baseline", "all"] {
            // Without tags, every switch flushes in the emulator, but the modelled machine has tags.
            if workload == "pingpong" && policy == "all" && !tags {
                continue;
            }
            // The emulated AArch64 processor invalidates a range with one instruction, but the machine file has one
            // instruction for each page.
            let of_ranges = parameters.contains("pages=40")
                || ["protect", "munmap", "scattered"].contains(&workload);
            if arch == "aarch64" && of_ranges {
                continue;
            }
            // The emulated RISC-V processor caches refusals, so a page that gains a right must be invalidated, too.
            if arch == "riscv64" && workload == "protect" {
                continue;
            }
            let machine = match (workload, slow) {
                ("readers", None) => continue,
                ("readers", Some(slow)) => slow,
                _ => machine,
            };
            let kernel = booted(arch, workload, parameters, cpus, policy);
            let model = modelled(machine, workload, parameters, cpus, policy);
            for ((name, counted), (_, predicted)) in kernel.into_iter().zip(model) {
                something += counted;
                let allowed = LIMIT * counted.max(predicted) as f64;
                assert!(
                    counted.abs_diff(predicted) as f64 <= allowed,
                    "{arch}, {workload} {parameters:?}, policy {policy}: {counted} {name} counted, \
                     {predicted} predicted\n{kernel:?}\n{model:?}"
                );
            }
        }
    }
    assert!(something > 1000, "{arch}: nothing was counted");
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_model_counts_what_the_kernel_counts_on_x86_64() {
    agree("x86_64", "haswell-server", Some("xeon-6430-cxl"), false);
}

#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_model_counts_what_the_kernel_counts_on_aarch64() {
    agree("aarch64", "kunpeng-920", None, true);
}

/// There is no machine file for a RISC-V processor. But these counts depend on no cost, only on three properties of the
/// machine: each CPU has its own tags, there are no broadcasts, and a flush of many pages becomes one of the whole tag.
/// We set that number of pages to the kernel's, so machines with PCIDs have the same three properties.
#[test]
#[ignore = "boots: `cargo xtask ci boots`"]
fn the_model_counts_what_the_kernel_counts_on_riscv64() {
    agree(
        "riscv64",
        "haswell-server --set invalidate.full_above=64",
        Some("xeon-6430-cxl --set invalidate.full_above=64"),
        true,
    );
}
