//! `kernels/asterinas/run`; see its help.

use anyhow::Context;
use clap::Parser;
use quell_boot::asterinas::kernels::{self, Flusher, Kernel};
use quell_boot::asterinas::machine::{self, Measurement, Suite, TestResults};
use quell_boot::asterinas::table::{self, Row};
use quell_boot::edits::Edits;
use quell_boot::toolchain::Toolchain;
use quell_boot::{Arch, qemu, toolchain};
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
    /// Only make the port's edits in a copy of ostd's sources of one's own, and end
    #[arg(long, value_name = "FOLDER")]
    apply: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match &arguments.apply {
        Some(folder) => apply(folder).map(|()| ExitCode::SUCCESS),
        None => with_tools(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}

fn apply(folder: &Path) -> anyhow::Result<()> {
    let home = kernels::home()?;
    let engine = home.join("../../engine/quell").canonicalize()?;
    let names = [("QUELL", engine.to_str().context("the path is not UTF-8")?)];
    Edits::read(&home.join("port.toml"), &names)?.apply(folder, &home)?;
    println!("{}: now uses quell", folder.display());
    Ok(())
}

fn with_tools(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let tools =
        toolchain::find(Arch::X86_64).and_then(|found| Ok((found, qemu::find(Arch::X86_64)?)));
    let found = tools.and_then(|(toolchain, emulator)| {
        let delivered = kernels::fetch(&toolchain)?;
        Ok((toolchain, emulator, delivered))
    });
    match found {
        Ok((toolchain, emulator, delivered)) if arguments.tests => {
            test(arguments, &toolchain, &emulator, &delivered)
        }
        Ok((toolchain, emulator, delivered)) => {
            compare(arguments, &toolchain, &emulator, &delivered)
        }
        Err(missing) if arguments.strict => Err(missing),
        Err(missing) => {
            eprintln!("SKIPPED: Asterinas is not compared: {missing:#}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn test(
    arguments: &Arguments,
    toolchain: &Toolchain,
    emulator: &Path,
    delivered: &Path,
) -> anyhow::Result<ExitCode> {
    let mut outcomes = Vec::new();
    for flusher in Flusher::BOTH {
        let folder = kernels::sources(Kernel::Unit, flusher, delivered)?;
        let image = kernels::build(Kernel::Unit, flusher, toolchain, &folder)?;
        for &cpus in &arguments.cpus {
            let tests: TestResults = machine::run(emulator, &image, cpus)?;
            outcomes.push((flusher, cpus, tests));
        }
    }
    let folder = kernels::sources(Kernel::Conformance, Flusher::Quell, delivered)?;
    let image = kernels::build(Kernel::Conformance, Flusher::Quell, toolchain, &folder)?;
    let suites = arguments.cpus.iter().map(|&cpus| {
        let suite: Suite = machine::run(emulator, &image, cpus)?;
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
    Ok(match all && held {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

fn compare(
    arguments: &Arguments,
    toolchain: &Toolchain,
    emulator: &Path,
    delivered: &Path,
) -> anyhow::Result<ExitCode> {
    let mut folders = Vec::new();
    let mut images = Vec::new();
    for flusher in Flusher::BOTH {
        let folder = kernels::sources(Kernel::Trial, flusher, delivered)?;
        images.push(kernels::build(Kernel::Trial, flusher, toolchain, &folder)?);
        folders.push(folder);
    }
    let size = kernels::size(&folders[0], &folders[1])?;
    let text_ostd = kernels::instructions(&images[0])?;
    let text_quell = kernels::instructions(&images[1])?;
    let mut rows: Vec<Row> = Vec::new();
    let mut sound = true;
    for &cpus in &arguments.cpus {
        let ostd: Measurement = machine::run(emulator, &images[0], cpus)?;
        let quell: Measurement = machine::run(emulator, &images[1], cpus)?;
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
        rows.extend(table::rows(cpus, &ostd, &quell));
    }
    if arguments.json {
        println!(
            "{}",
            json!({ "rows": rows, "lines": size, "text": { "ostd": text_ostd, "quell": text_quell } })
        );
    } else {
        print!("{}", table::markdown(&rows));
        println!(
            "\nThe port adds {} lines and removes {}; the kernel has {text_ostd} bytes of instructions before, \
             {text_quell} after.",
            size.added, size.removed
        );
    }
    let complete = rows.len() == table::ROWS * arguments.cpus.len();
    if !complete {
        eprintln!("error: rows are missing, because the kernels did not measure everything");
    }
    let more: Vec<&Row> = rows.iter().filter(|row| !row.holds()).collect();
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
