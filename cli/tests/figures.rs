//! The documents contain the figures that the command prints.
//!
//! The figures are the same on every host. We use the optimised command, because otherwise the tests would take
//! minutes: `cargo xtask ci figures`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the command's output.
fn printed(line: &str) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let command = Command::new(cargo)
        .args(["run", "--release", "--"])
        .args(line.split(' '))
        .current_dir(root())
        // On the screen, because cargo may wait for another cargo.
        .stderr(Stdio::inherit())
        .output()
        .expect("the command runs");
    assert!(command.status.success(), "{line}");
    String::from_utf8(command.stdout).expect("text")
}

fn text_of(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).expect("the document")
}

/// Returns the lines that the text doesn't contain.
fn missing<'l>(lines: impl Iterator<Item = &'l str>, text: &str) -> Vec<&'l str> {
    lines.filter(|line| !text.lines().any(|there| there == *line)).collect()
}

/// Fails unless the document contains the command's whole output.
#[track_caller]
fn holds(document: &str, line: &str) {
    let text = text_of(document);
    let printed = printed(line);
    assert!(printed.lines().count() > 5, "{printed}");
    let missing = missing(printed.lines(), &text);
    assert!(
        missing.is_empty() && text.contains(printed.trim_end()),
        "{document} does not hold what `quell {line}` prints; not there:\n{}",
        missing.join("\n")
    );
}

#[test]
#[ignore = "builds the optimised command: cargo xtask ci figures"]
fn documents_hold_what_the_command_prints() {
    holds("docs/headlines.md", "reproduce --markdown");
    holds("model/experiments/results/guards.txt", "reproduce --guards --markdown");
    holds("search/adversary/results/mutants.txt", "explore --mutants --markdown");
    holds("docs/held-out.md", "held-out --calibrate before --markdown");
}

#[test]
#[ignore = "builds the optimised command: cargo xtask ci figures"]
fn the_readme_shows_the_row_of_each_mechanism() {
    let printed = printed("reproduce --no-report");
    let rows = || printed.lines().filter(|line| line.contains(" hit"));
    assert_eq!(rows().count(), 5, "{printed}");
    let missing = missing(rows().map(str::trim_end), &text_of("README.md"));
    assert!(missing.is_empty(), "not in README.md:\n{}", missing.join("\n"));
}

#[test]
fn the_readme_counts_the_held_out_hits_and_misses() {
    let table = text_of("docs/held-out.md");
    // The verdict is in the tenth column; the last one is that of calibrated predictions.
    let count = |verdict: &str| {
        let of = |line: &&str| line.split(" | ").nth(9) == Some(verdict);
        table.lines().filter(of).count()
    };
    let (hits, misses) = (count("hit"), count("miss"));
    let counted = format!("{hits} of {} ratios are predicted within 15 %", hits + misses);
    let readme = text_of("README.md");
    let words: Vec<&str> = readme.split_whitespace().collect();
    assert!(words.join(" ").contains(&counted), "{counted}");
}

/// Checks that 45 CPUs that demote and reclaim don't queue for locks. They once took a node's lock for every frame. A
/// page then cost 50 to 230 transfers of cache lines, and the run time of lazy unmap measured the queue instead of the
/// flushes.
#[test]
#[ignore = "builds the optimised command: cargo xtask ci figures"]
fn readers_that_compute_little_do_not_queue_for_locks() {
    for policy in ["all", "all-S3"] {
        for compute in ["compute=70us", "compute=20us", "compute=5us"] {
            let run = "run readers --machine xeon-6430-cxl --json";
            let printed = printed(&format!("{run} --policy {policy} --param {compute}"));
            let run: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            let count = |key: &str| run["machine_counts"][key].as_f64().expect(key);
            let transfers = count("transfers") / count("faults");
            assert!(
                transfers < 45.0,
                "{policy}, {compute}: {transfers:.0} transfers of lines a page"
            );
        }
    }
}
