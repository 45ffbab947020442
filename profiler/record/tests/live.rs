//! Checks the script for hosts without quell, on a program that constantly gives memory back.
//!
//! Needs root, tracefs, `perf` and a C compiler. If one is missing, the test prints `SKIPPED` past the test harness,
//! and passes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_record::attribute::Evidence;
use quell_record::events;
use quell_record::import::Import;
use quell_record::perf::file::Recording;
use quell_record::perf::live::{Options, Recorder, Scope, SumMode};
use quell_record::report::Report;

fn skipped(why: &str) {
    // The harness captures `eprintln!`, but this line must be visible in every run.
    let line = format!("SKIPPED: recording a program with perf: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Compiles `programs/allocator.c`. Returns `None` without a C compiler.
fn allocator(folder: &Path) -> Option<PathBuf> {
    let program = folder.join("allocator");
    let compiled = Command::new("cc")
        .args(["-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o"])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/allocator.c"))
        .status();
    compiled.is_ok_and(|status| status.success()).then_some(program)
}

#[test]
#[ignore = "records a live host for seconds, with perf: `cargo xtask ci host`"]
fn a_program_is_recorded_and_its_interrupts_are_laid_at_its_calls() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = allocator(folder.path()) else {
        return skipped("there is no C compiler");
    };
    let recording = folder.path().join("recording.txt");
    let output = Command::new(here.join("../../scripts/record-with-perf"))
        .arg(&recording)
        .arg(&program)
        .arg("1")
        // With this setting each buffer is a mapping of its own.
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
    let site =
        report.sites.iter().find(|site| site.program == "allocator" && site.call == "munmap");
    let site = site.unwrap_or_else(|| panic!("{:#?}", report.answer));
    assert!(site.requests > 100, "{site:?}");
    if lost > 0 || evidence != Evidence::Queued || row < 100 {
        return skipped(&format!(
            "{lost} events were lost, and {row} interrupts are too few to compare"
        ));
    }
    let share = report.attributed as f64 / row as f64;
    assert!((0.95..1.05).contains(&share), "{share}: {:#?}", report.answer);
}

/// Records the program. Returns the verdict up to its figures, and the first advice.
fn said(program: &Path) -> Result<(String, String), String> {
    let mut command = Command::new(program);
    command
        .arg("2")
        .env("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=16384")
        .stdout(std::process::Stdio::null());
    let options = Options {
        wanted: events::recorded(),
        overhead: 0.05,
        sums: SumMode::Beside,
        ..Options::default()
    };
    let recorder = Recorder::open(options, Scope::Command(command));
    let recorder = recorder.map_err(|refused| refused.to_string())?;
    let file = tempfile::NamedTempFile::new().unwrap();
    recorder.write(file.reopen().unwrap(), &mut |_| false).unwrap();
    let mut source = Recording::open(file.path()).unwrap();
    let all = quell_record::analyse(&mut source, &mut (), &mut |_, _| true).unwrap();
    let report = Report::new(all, None);
    let verdict = report.answer[0].split([':', '(']).next().unwrap_or_default();
    let advice = report.advice.first();
    let advice =
        advice.map_or_else(String::new, |advice| format!("{} {}", advice.kind, advice.call));
    Ok((verdict.to_owned(), advice))
}

#[test]
#[ignore = "records a live host for half a minute: `cargo xtask ci host`"]
fn ten_recordings_of_a_program_say_the_same_nine_times() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = allocator(folder.path()) else {
        return skipped("there is no C compiler");
    };
    let mut times = std::collections::HashMap::new();
    for _ in 0..10 {
        match said(&program) {
            Ok(said) => *times.entry(said).or_insert(0) += 1,
            Err(why) => return skipped(&why),
        }
    }
    assert!(times.values().any(|&times| times >= 9), "{times:#?}");
}
