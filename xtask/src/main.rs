//! `cargo xtask ci`: what a change must pass beyond `cargo test`.
//!
//! `cargo test` checks what can be checked in a few minutes on a machine with nothing but a Rust toolchain. A check
//! that takes longer, or needs an emulator, is a step of this command, so that there is one place where it is written
//! down ([`steps`]) and one line to type. A step is a command line that a person can type as well; it is printed with
//! what it says. All steps run, two at a time where they can ([`lanes`]), also after one has failed, and the end is a
//! list of what came of each, after the last lines of those that failed.

mod api;
mod cargo;
mod lanes;
mod lints;
mod mutate;
mod output;
mod overhead;
mod package;
mod programs;
mod steps;

use lanes::{Passed, SKIPPED};
use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use steps::{STEPS, Step};

const USAGE: &str = "\
cargo xtask ci [--without-emulators] [STEP ...]
    runs all steps, or the named ones, two at a time where they can
cargo xtask list
    says what the steps are
cargo xtask lints
    runs clippy on everything, with all unit tests
cargo xtask orderings
    prints docs/orderings.md, from the comments at the orderings
cargo xtask api [--accept]
    compares the public interfaces with those kept in docs/api, or keeps the new ones
cargo xtask programs [--rounds N] [--seconds N] [--write] [NAME ...]
    runs real programs as they are, recorded and as advised by turns, as root; --write puts the tables into docs/record
cargo xtask overhead [--pairs N] [--write] [WORK ...]
    measures what recording costs by turns, as root; --write puts the table into docs/record.md
cargo xtask package
    builds the crates that others use from what would be published of them
cargo xtask python
    tests the Python module, by scripts/test-python
cargo xtask mutate [--only N] [--file FILE.rs] [--sample K [--seed S]] [--tests] [--thorough] [--jobs N] [--json]
    tries mutants of the engine that a program makes, all or some; with --tests by the engine's tests alone
cargo xtask mutate --list
    says what they are
cargo xtask mutate --markdown
    prints docs/engine-mutants.md";

/// What was asked for.
enum Asked {
    List,
    Lints,
    Orderings,
    Package,
    Python,
    Api { accept: bool },
    Mutate(mutate::Asked),
    Programs(programs::Asked),
    Overhead(overhead::Asked),
    Run(Vec<&'static Step>, Vec<&'static Step>),
}

/// # Errors
/// What is wrong with the arguments, in a line.
fn asked(arguments: &[String]) -> Result<Asked, String> {
    match arguments.split_first() {
        Some((first, [])) if first == "list" => Ok(Asked::List),
        Some((first, [])) if first == "lints" => Ok(Asked::Lints),
        Some((first, [])) if first == "orderings" => Ok(Asked::Orderings),
        Some((first, [])) if first == "package" => Ok(Asked::Package),
        Some((first, [])) if first == "python" => Ok(Asked::Python),
        Some((first, rest)) if first == "mutate" => mutate::asked(rest).map(Asked::Mutate),
        Some((first, rest)) if first == "programs" => programs::asked(rest).map(Asked::Programs),
        Some((first, rest)) if first == "overhead" => overhead::asked(rest).map(Asked::Overhead),
        Some((first, rest)) if first == "api" => match rest {
            [] => Ok(Asked::Api { accept: false }),
            [option] if option == "--accept" => Ok(Asked::Api { accept: true }),
            [unknown, ..] => Err(format!("api knows --accept, not {unknown}")),
        },
        Some((first, rest)) if first == "ci" => {
            let (options, names): (Vec<_>, Vec<_>) =
                rest.iter().partition(|word| word.starts_with('-'));
            if let Some(unknown) = options.iter().find(|word| **word != "--without-emulators") {
                return Err(format!("there is no option {unknown}"));
            }
            let known = |name: &&&String| STEPS.iter().all(|step| step.name != **name);
            if let Some(unknown) = names.iter().find(known) {
                let all: Vec<_> = STEPS.iter().map(|step| step.name).collect();
                return Err(format!(
                    "there is no step {unknown}; there are {}",
                    all.join(", ")
                ));
            }
            let chosen = STEPS
                .iter()
                .filter(|step| names.is_empty() || names.iter().any(|name| *name == step.name));
            let (skipped, run) = chosen.partition(|step| step.boots && !options.is_empty());
            Ok(Asked::Run(run, skipped))
        }
        _ => Err("say what is to be done".into()),
    }
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Prints what `docs/orderings.md` must be.
fn orderings() -> ExitCode {
    told(
        quell_orderings::read(root()).map(|sites| output::print(quell_orderings::document(&sites))),
    )
}

/// Tests the Python module; ends with [`SKIPPED`] where the script has no Python to do so with.
fn python() -> ExitCode {
    let script = root().join("scripts/test-python");
    told(match std::process::Command::new(&script).status() {
        Ok(status) if status.code() == Some(SKIPPED.into()) => return SKIPPED.into(),
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", script.display())),
        Err(error) => Err(format!("{} does not start: {error}", script.display())),
    })
}

/// Says what is wrong, if anything is.
fn told<E: fmt::Display>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("{wrong}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (run, skipped) = match asked(&arguments) {
        Ok(Asked::Run(run, skipped)) => (run, skipped),
        Ok(Asked::List) => {
            for step in STEPS {
                output::print(format_args!(
                    "{:14} {}\n               {step}\n",
                    step.name, step.shows
                ));
            }
            return ExitCode::SUCCESS;
        }
        Ok(Asked::Lints) => return told(lints::run(root())),
        Ok(Asked::Orderings) => return orderings(),
        Ok(Asked::Api { accept }) => return told(api::run(root(), accept)),
        Ok(Asked::Mutate(asked)) => return told(mutate::run(root(), &asked)),
        Ok(Asked::Programs(asked)) => return told(programs::run(root(), &asked)),
        Ok(Asked::Overhead(asked)) => return told(overhead::run(root(), &asked)),
        Ok(Asked::Package) => return told(package::run(root())),
        Ok(Asked::Python) => return python(),
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let outcomes = lanes::run(run);
    for outcome in &outcomes {
        if let Err(last) = &outcome.result
            && !last.is_empty()
        {
            println!(
                "\n== {} FAILED; the end of what it said:",
                outcome.step.name
            );
            for line in last {
                println!("   {line}");
            }
        }
    }
    println!();
    for outcome in &outcomes {
        let (step, seconds) = (outcome.step, outcome.took.as_secs());
        match outcome.result {
            Ok(Passed::Whole) => println!("{:14} passed   {seconds:5} s", step.name),
            Ok(Passed::Skipped) => println!(
                "{:14} SKIPPED  {seconds:5} s, a tool is missing, as it says: {}",
                step.name, step.shows
            ),
            Err(_) => println!("{:14} FAILED   {seconds:5} s", step.name),
        }
    }
    for step in &skipped {
        println!(
            "{:14} SKIPPED because of --without-emulators: {}",
            step.name, step.shows
        );
    }
    println!("{:14}          {:5} s", "all", begun.elapsed().as_secs());
    if outcomes.iter().all(|outcome| outcome.result.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
