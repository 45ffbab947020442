//! Compares quell with Linux in the emulator.
//!
//! If the emulator, a Linux kernel or a toolchain for bare metal is missing, a test prints `SKIPPED` and the reason,
//! and passes. If `QUELL_REQUIRE_LINUX` is set (or `QUELL_REQUIRE_LINUX_BUILD`, for a Linux with the engine), it fails
//! instead. We use a kernel fetched by `quell versus linux --fetch`, or the one in `QUELL_LINUX`.

/// This program uses only a part of it.
#[allow(dead_code)]
mod command;

use command::{Ended, Folder, PERF, run, skipped};
use quell_boot::linux::Flavour;

/// Runs the comparison in this folder.
fn versus(folder: &Folder, options: &str) -> Ended {
    let kernel = std::env::var("QUELL_LINUX").map(|kernel| format!("--kernel {kernel}"));
    folder.run(&format!("versus linux {} {options}", kernel.unwrap_or_default()))
}

/// Returns whether the comparison can run here; prints the reason if not.
fn can_compare() -> bool {
    let check = versus(&Folder::new(), "--check");
    if check.code == Some(0) {
        return true;
    }
    let required = std::env::var_os("QUELL_REQUIRE_LINUX").is_some();
    assert!(!required, "the comparison must run here: {}", check.stderr);
    skipped("comparing with Linux", &check.stderr);
    false
}

#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn linux_and_quell_are_compared_by_the_same_counts_each_time() {
    if !can_compare() {
        return;
    }
    let compare =
        || versus(&Folder::new(), "--quick --workload dontneed --cpus 2 --json").code(0).json();
    let first = compare();
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
    assert_eq!(compare(), first);
}

/// The user's own files, and files written from recordings, are compared like built-in workloads.
#[test]
#[ignore = "boots: `cargo xtask ci linux`"]
fn a_workload_file_and_a_recording_run_on_both_sides() {
    if !can_compare() {
        return;
    }
    let folder = Folder::new();
    // This is the example in the documents.
    let document = include_str!("../../docs/workloads.md");
    let mine = document.split("```toml\n").nth(1).expect("an example");
    folder.write("mine.toml", mine.split("```").next().expect("its end"));
    folder.write("perf.txt", PERF);
    let record = "record --import perf.txt --program churn --workload recorded.toml";
    folder.run(record).code(0);
    let files = "--quick --cpus 2 --workload mine.toml,recorded.toml --json";
    let result = versus(&folder, files).code(0).json();
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
    run("versus linux --workload dontned").code(2).stderr("dontned").stderr("dontneed");
    let no_kernel = run(&format!("versus linux --kernel {}", env!("CARGO_BIN_EXE_quell")));
    // If the emulator is missing, that error comes first.
    let known = ["not an image of a Linux kernel", "is not installed"];
    assert!(known.iter().any(|known| no_kernel.stderr.contains(known)), "{no_kernel:?}");
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
        let why = format!("there is no {missing}: kernels/linux/run both makes it");
        skipped("Linux with the engine", &why);
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
    let kernels = format!("--kernel {stock} --on-quell {on_quell}");
    let run = || {
        let brief = "--quick --workload dontneed,swap --cpus 2 --json";
        run(&format!("versus linux {kernels} {brief}")).code(0).json()
    };
    let first = run();
    let report = &first;
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
