//! Puts quell into the published sources of Asterinas' `ostd`, and compares both in an emulator.
//!
//! [`kernels`] fetches the sources and edits them by `measure.toml` and `port.toml` of `kernels/asterinas`. It builds
//! the trial kernel with ostd's own flusher and with quell, and the kernels that run ostd's unit tests and quell's
//! conformance suite. [`machine`] boots a kernel and reads its output.

mod kernels;
mod machine;

use crate::edits::Edits;
use crate::toolchain::Toolchain;
use crate::{Arch, qemu, toolchain};
use clap::Parser;
use kernels::{CALLS, CONFORMANCE, Flusher, TRIAL, UNIT};
use machine::{Measurement, Suite, TestResults};
use serde::Serialize;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Puts quell into Asterinas' ostd and compares the two.
///
/// Fetches ostd's published sources, builds a kernel with its own flusher and one with quell, boots both in QEMU,
/// where an instruction takes a nanosecond, and prints the cost of the same operations. User programs read the pages
/// meanwhile; a stale read fails the run. Exits with 1 if quell costs more than ostd anywhere, if the port adds more
/// lines than it removes, or if it passes fewer of ostd's tests; with 2 on an error; and with 0 and a message if a
/// tool is missing.
#[derive(Parser)]
#[command(name = "run")]
struct Arguments {
    /// Print the table as JSON: {"rows":[{"operation","unit","cpus","ostd","quell"}],"lines":{…},"text":{…}}
    #[arg(long)]
    json: bool,
    /// Numbers of CPUs
    #[arg(long, value_delimiter = ',', default_value = "4,8", value_parser = clap::value_parser!(u16).range(2..=255))]
    cpus: Vec<u16>,
    /// Fail instead of skipping where tools are missing
    #[arg(long)]
    strict: bool,
    /// Instead run ostd's own unit tests, with its own flusher and with quell, and quell's conformance suite in ostd
    #[arg(long)]
    tests: bool,
    /// Only build kernels whose programs make calls, for `quell hunt`, and print their paths
    #[arg(long)]
    calls: bool,
    /// Only make the port's edits in a copy of ostd's sources of one's own, and end
    #[arg(long, value_name = "FOLDER")]
    apply: Option<PathBuf>,
}

/// The tools of a run, and the sources of ostd.
struct Tools {
    toolchain: Toolchain,
    emulator: PathBuf,
    delivered: PathBuf,
}

impl Tools {
    fn find() -> anyhow::Result<Self> {
        let toolchain = toolchain::find(Arch::X86_64)?;
        let emulator = qemu::find(Arch::X86_64)?;
        let delivered = kernels::fetch(&toolchain)?;
        Ok(Tools { toolchain, emulator, delivered })
    }
}

/// Runs the command `kernels/asterinas/run`.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.apply {
        Some(folder) => apply(folder),
        None => match Tools::find() {
            Ok(tools) if arguments.calls => build_calls(&tools),
            Ok(tools) if arguments.tests => test(&arguments, &tools),
            Ok(tools) => compare(&arguments, &tools),
            Err(missing) if arguments.strict => Err(missing),
            Err(missing) => {
                eprintln!("SKIPPED: Asterinas is not compared: {missing:#}");
                Ok(ExitCode::SUCCESS)
            }
        },
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

fn apply(folder: &Path) -> anyhow::Result<ExitCode> {
    let home = kernels::home()?;
    let engine = kernels::engine()?;
    Edits::read(&home.join("port.toml"), &[("QUELL", &engine)])?.apply(folder, &home)?;
    println!("{}: now uses quell", folder.display());
    Ok(ExitCode::SUCCESS)
}

fn build_calls(tools: &Tools) -> anyhow::Result<ExitCode> {
    for flusher in Flusher::BOTH {
        let (_, image) = kernels::make(&CALLS, flusher, tools)?;
        println!("{}: {}", flusher.name(), image.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn test(arguments: &Arguments, tools: &Tools) -> anyhow::Result<ExitCode> {
    let mut outcomes = Vec::new();
    for flusher in Flusher::BOTH {
        let (_, image) = kernels::make(&UNIT, flusher, tools)?;
        for &cpus in &arguments.cpus {
            let tests: TestResults = machine::run(&tools.emulator, &image, cpus)?;
            outcomes.push((flusher, cpus, tests));
        }
    }
    let (_, image) = kernels::make(&CONFORMANCE, Flusher::Quell, tools)?;
    let suites = arguments.cpus.iter().map(|&cpus| {
        let suite: Suite = machine::run(&tools.emulator, &image, cpus)?;
        Ok((cpus, suite))
    });
    let suites: Vec<(u16, Suite)> = suites.collect::<anyhow::Result<_>>()?;
    if arguments.json {
        let tests: Vec<_> = (outcomes.iter())
            .map(|(flusher, cpus, tests)| json!({ "flusher": flusher.name(), "cpus": cpus, "of": tests }))
            .collect();
        let suites: Vec<_> =
            (suites.iter()).map(|(cpus, suite)| json!({ "cpus": cpus, "of": suite })).collect();
        println!("{}", json!({ "tests": tests, "conformance": suites }));
    } else {
        for (flusher, cpus, tests) in &outcomes {
            let (name, failed) = (flusher.name(), tests.failed.len());
            println!(
                "with the flusher of {name}, on {cpus} CPUs: {} of ostd's tests passed, {failed} failed",
                tests.passed
            );
            tests.failed.iter().for_each(|test| println!("  {test}"));
        }
        for (cpus, suite) in &suites {
            let (held, failed) = (suite.held.len(), suite.failed.len());
            println!(
                "the conformance suite in ostd, on {cpus} CPUs: {held} checks held, {failed} failed"
            );
            suite.failed.iter().for_each(|check| println!("  {check}"));
        }
    }
    let most = (outcomes.iter().map(|(_, _, tests)| tests.passed)).max();
    let all = (outcomes.iter()).all(|(_, _, tests)| Some(tests.passed) == most && most > Some(0));
    let held = (suites.iter()).all(|(_, suite)| suite.failed.is_empty() && !suite.held.is_empty());
    Ok(if all && held { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn compare(arguments: &Arguments, tools: &Tools) -> anyhow::Result<ExitCode> {
    let (ostd_sources, ostd_image) = kernels::make(&TRIAL, Flusher::Ostd, tools)?;
    let (quell_sources, quell_image) = kernels::make(&TRIAL, Flusher::Quell, tools)?;
    let size = kernels::size(&ostd_sources, &quell_sources)?;
    let text_ostd = kernels::instructions(&ostd_image)?;
    let text_quell = kernels::instructions(&quell_image)?;
    let mut all: Vec<Row> = Vec::new();
    let mut sound = true;
    for &cpus in &arguments.cpus {
        let ostd: Measurement = machine::run(&tools.emulator, &ostd_image, cpus)?;
        let quell: Measurement = machine::run(&tools.emulator, &quell_image, cpus)?;
        for (flusher, measured) in Flusher::BOTH.iter().zip([&ostd, &quell]) {
            if !measured.sound {
                sound = false;
                eprintln!(
                    "error: with the flusher of {} on {cpus} CPUs, programs read revoked pages: {:?}",
                    flusher.name(),
                    measured.stale
                );
            }
        }
        all.extend(rows(cpus, &ostd, &quell));
    }
    if arguments.json {
        println!(
            "{}",
            json!({ "rows": all, "lines": size, "text": { "ostd": text_ostd, "quell": text_quell } })
        );
    } else {
        println!(
            "{}\n\nThe port adds {} lines and removes {}; the kernel has {text_ostd} bytes of instructions before, \
             {text_quell} after.",
            markdown(&all),
            size.added,
            size.removed
        );
    }
    let complete = all.len() == SHOWN.len() * arguments.cpus.len();
    if !complete {
        eprintln!("error: rows are missing, because the kernels did not measure everything");
    }
    let more: Vec<&Row> = all.iter().filter(|row| row.quell > row.ostd).collect();
    for row in &more {
        eprintln!(
            "error: {} on {} CPUs needs {} {} with quell, {} with ostd's own flusher",
            row.operation, row.cpus, row.quell, row.unit, row.ostd
        );
    }
    let smaller = size.added < size.removed;
    if !smaller {
        eprintln!(
            "error: the port adds {} lines and removes {}: it must remove more than it adds",
            size.added, size.removed
        );
    }
    Ok(match (sound && complete, more.is_empty() && smaller) {
        (false, _) => ExitCode::from(2),
        (true, false) => ExitCode::from(1),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// One figure of both kernels.
#[derive(Serialize)]
struct Row {
    operation: &'static str,
    unit: &'static str,
    cpus: u16,
    ostd: u64,
    quell: u64,
}

/// The rows: the operation, the kernels' name of the unit, and its title.
const SHOWN: [(&str, &str, &str); 9] = [
    ("unmap 1 page", "ns", "instructions"),
    ("unmap 16 pages", "ns", "instructions"),
    ("unmap 512 pages", "ns", "instructions"),
    ("context switch", "ns", "instructions"),
    ("protect 8 scattered pages", "ns", "instructions"),
    ("protect 8 scattered pages", "full", "full flushes"),
    ("protect 8 scattered pages", "pages", "pages invalidated"),
    ("protect 8 scattered pages", "interrupts", "interrupts"),
    ("unmap 512 pages", "interrupts", "interrupts"),
];

/// Returns the rows that both kernels have measured.
fn rows(cpus: u16, ostd: &Measurement, quell: &Measurement) -> Vec<Row> {
    let shown = SHOWN.iter().filter_map(|&(operation, key, unit)| {
        let key = (operation.to_string(), key.to_string());
        let figure = |measured: &Measurement| measured.rows.get(&key).copied();
        Some(Row { operation, unit, cpus, ostd: figure(ostd)?, quell: figure(quell)? })
    });
    shown.collect()
}

/// Returns the rows as a table in Markdown.
fn markdown(rows: &[Row]) -> String {
    let head = ["| operation | unit | CPUs | ostd | quell |", "| --- | --- | --- | --- | --- |"];
    let rows = rows.iter().map(|row| {
        let Row { operation, unit, cpus, ostd, quell } = row;
        format!("| {operation} | {unit} | {cpus} | {ostd} | {quell} |")
    });
    head.map(String::from).into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::machine::Report;
    use super::*;

    #[test]
    fn only_what_both_have_measured_is_compared() {
        let measured = |lines: &[&str]| {
            let mut measured = Measurement::default();
            lines.iter().for_each(|line| assert!(!measured.take(line).unwrap()));
            measured
        };
        let ostd = measured(&["trial: row ns unmap 1 page|10", "trial: row ns context switch|5"]);
        let rows = rows(4, &ostd, &measured(&["trial: row ns unmap 1 page|11"]));
        assert_eq!(rows.len(), 1);
        assert!(markdown(&rows).ends_with("\n| unmap 1 page | instructions | 4 | 10 | 11 |"));
    }
}
