//! The script that records where quell is not installed, on a program that gives memory back all the time.
//!
//! Needs root, tracefs, `perf` and a C compiler. Where one is missing the test says `SKIPPED`, past the test harness,
//! and passes.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use quell_record::attribute::Evidence;
use quell_record::import::Import;
use quell_record::report::Report;

fn skipped(why: &str) {
    // Not `eprintln!`, which the harness captures: this is to be seen in every run.
    let line = format!("SKIPPED: recording a program with perf: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[test]
#[ignore = "records a live host for seconds, with perf: `cargo xtask ci host`"]
fn a_program_is_recorded_and_its_interrupts_are_laid_at_its_calls() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("allocator");
    let compiled = Command::new("cc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"])
        .arg(&program)
        .arg(here.join("programs/allocator.c"))
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        return skipped("there is no C compiler");
    }
    let recording = folder.path().join("recording.txt");
    let output = Command::new(here.join("../../scripts/record-with-perf"))
        .arg(&recording)
        .arg(&program)
        .arg("1")
        // Each buffer is a mapping of its own.
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=16384")
        .output()
        .unwrap();
    if output.status.code() == Some(3) {
        return skipped(String::from_utf8_lossy(&output.stderr).trim());
    }
    assert!(output.status.success(), "{output:?}");
    let mut source = Import::open(&recording).unwrap();
    let all = quell_record::analyse(&mut source, &mut (), &mut |_, _| true).unwrap();
    let (row, evidence, lost) = (all.row("TLB").unwrap(), all.evidence(), all.lost);
    let report = Report::new(all, None);
    let site = report
        .sites
        .iter()
        .find(|site| site.program == "allocator" && site.call == "munmap");
    let site = site.unwrap_or_else(|| panic!("{:#?}", report.answer));
    assert!(site.requests > 100, "{site:?}");
    if lost > 0 || evidence != Evidence::Queued || row < 100 {
        return skipped(&format!(
            "{lost} events were lost, and {row} interrupts are too few to compare"
        ));
    }
    let share = report.attributed as f64 / row as f64;
    assert!(
        (0.95..1.05).contains(&share),
        "{share}: {:#?}",
        report.answer
    );
}
