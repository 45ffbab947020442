//! `cargo xtask ci`: what a change must pass beyond `cargo test`.
//!
//! `cargo test` checks what can be checked in a few minutes on a machine with nothing but a Rust toolchain. A check
//! that takes longer, or needs an emulator, is a step of this command, so that there is one place where it is written
//! down and one line to type. A step is a command line that a person can type as well; it is printed before it runs.
//! All steps run, also after one has failed, and the end is a list of what came of each, after the last lines of those
//! that failed. This file is long because the table of steps is in it.

mod api;
mod cargo;
mod mutate;
mod output;
mod overhead;
mod package;
mod programs;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

/// Words of the command line.
type Words = &'static [&'static str];

/// One thing to check.
struct Step {
    /// What it is asked for by.
    name: &'static str,
    /// What has been shown when it passes.
    shows: &'static str,
    /// Variables of its environment.
    environment: &'static [(&'static str, &'static str)],
    /// What `cargo` is told. A step names the test or the binary that it needs and, where it can, no package: what
    /// packages are chosen decides with which features the crates are built that they share, and `cargo test` and
    /// `cargo run --release` have built all of them for those that they choose.
    cargo: Words,
    /// Whether it boots machines in emulators, which `scripts/setup-boot --bochs --linux` installs with what else such
    /// steps need.
    boots: bool,
}

const STEPS: &[Step] = &[
    Step {
        name: "xtask",
        shows: "this command tells what breaks others from what does not, and quell.h is what the sources say",
        environment: &[],
        cargo: &["test", "--package", "xtask"],
        boots: false,
    },
    Step {
        name: "api",
        shows: "what others use changed only as its version says",
        environment: &[],
        cargo: &["xtask", "api"],
        boots: false,
    },
    Step {
        name: "units",
        shows: "the parts of the adversary, and of what records, do what they say",
        environment: &[],
        cargo: &[
            "test",
            "--package",
            "quell-adversary",
            "--package",
            "quell-perf",
            "--lib",
        ],
        boots: false,
    },
    Step {
        name: "package",
        shows: "what others use builds from what would be published",
        environment: &[],
        cargo: &["xtask", "package"],
        boots: false,
    },
    Step {
        name: "python",
        shows: "the Python module gives what the command gives; skipped, and told, where there is no Python",
        environment: &[],
        cargo: &["xtask", "python"],
        boots: false,
    },
    Step {
        name: "large",
        shows: "the engine holds with sets of 8192 CPUs",
        environment: &[],
        cargo: &["test", "--package", "quell", "--features", "cpus-8192"],
        boots: false,
    },
    Step {
        name: "orderings",
        shows: "each memory ordering is needed, and enough (loom)",
        environment: &[],
        cargo: &[
            "test",
            "--release",
            "--package",
            "quell-orderings",
            "--features",
            "loom",
        ],
        boots: false,
    },
    Step {
        name: "exhaustive",
        shows: "small programs hold in every schedule, and the search of all of them misses nothing",
        environment: &[],
        // Optimised: debug builds leave more behind on the stacks by which the search tells states apart, and it would
        // not end.
        cargo: &[
            "test",
            "--release",
            "--package",
            "quell-adversary",
            "--test",
            "adversary",
            "--",
            "--ignored",
            "--nocapture",
        ],
        boots: false,
    },
    Step {
        name: "threads",
        shows: "threads on real cores hold the contract for twenty times as long, and the mutant that takes luck is found",
        environment: &[("QUELL_STRESS_OPERATIONS", "2000")],
        cargo: &[
            "test",
            "--test",
            "threads",
            "stress::",
            "--",
            "--include-ignored",
        ],
        boots: false,
    },
    Step {
        name: "inputs",
        shows: "forty more command lines that are drawn end well; QUELL_FUZZ_MINUTES=N draws new ones for longer",
        environment: &[("QUELL_FUZZ_SEED", "1")],
        cargo: &["test", "--test", "cli", "inputs::", "--", "--nocapture"],
        boots: false,
    },
    Step {
        name: "parquet",
        shows: "what a sweep writes as Parquet is what it writes as CSV",
        environment: &[],
        cargo: &[
            "test",
            "--features",
            "quell-cli/parquet",
            "--test",
            "cli",
            "sweep::",
        ],
        boots: false,
    },
    Step {
        name: "c",
        shows: "the C interface is built for kernels, and programs in C run on it",
        environment: &[("QUELL_REQUIRE_C", "1")],
        cargo: &["test", "--test", "c", "--", "--include-ignored"],
        boots: false,
    },
    Step {
        name: "engine-mutants",
        shows: "some mutants of the engine that a program makes are killed; `cargo xtask mutate` tries all",
        environment: &[],
        cargo: &["xtask", "mutate", "--sample", "8", "--seed", "1"],
        boots: false,
    },
    Step {
        name: "schedules",
        shows: "the contract holds in more than ten million schedules",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "explore",
            "--schedules",
            "2000",
        ],
        boots: false,
    },
    Step {
        name: "reproduce",
        shows: "the first command that a stranger types works",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "reproduce",
            "--no-report",
        ],
        boots: false,
    },
    Step {
        name: "figures",
        shows: "every known mistake is found, and the tables of figures in the documents are what the command prints",
        environment: &[],
        cargo: &["test", "--test", "cli", "--", "--ignored", "figures::"],
        boots: false,
    },
    Step {
        name: "host",
        shows: "a live host is measured, recorded and left as it was; nothing else may flush or swap there meanwhile",
        environment: &[],
        cargo: &[
            "test",
            "--test",
            "cli",
            "--test",
            "record",
            "--",
            "--ignored",
            "--test-threads",
            "1",
            "measure_host::",
            "record_programs::",
            "live::",
        ],
        boots: false,
    },
    Step {
        name: "book",
        shows: "the documents make a book; it is written to target/book",
        environment: &[],
        cargo: &[
            "run",
            "--quiet",
            "--package",
            "quell-book",
            "--features",
            "html",
        ],
        boots: false,
    },
    Step {
        name: "boots",
        shows: "the kernel passes on every architecture, notices mistakes, and counts what the model counts",
        environment: &[("QUELL_REQUIRE_BOOT", "1"), ("QUELL_REQUIRE_BOCHS", "1")],
        cargo: &[
            "test",
            "--test",
            "cli",
            "--",
            "--ignored",
            "boot::",
            "agreement::",
        ],
        boots: true,
    },
    Step {
        name: "kernels",
        shows: "every edit of the integration fits Linux 6.12, and Linux builds with the engine and without",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--bin",
            "quell-linux",
            "--",
            "both",
        ],
        boots: true,
    },
    Step {
        name: "linux",
        shows: "Linux and the kernel compare as the documents say, and Linux keeps the contract; needs a Linux to boot",
        environment: &[],
        cargo: &[
            "test",
            "--test",
            "versus",
            "--test",
            "conformance",
            "--",
            "--ignored",
        ],
        boots: true,
    },
    Step {
        name: "asterinas",
        shows: "in Asterinas' ostd quell needs no more than what it replaces, and programs see no page that is gone",
        environment: &[],
        cargo: &["run", "--release", "--quiet", "--bin", "quell-asterinas"],
        boots: true,
    },
    Step {
        name: "stress",
        shows: "every operation on every CPU at random, on every MMU",
        environment: &[],
        cargo: &[
            "run",
            "--release",
            "--quiet",
            "--",
            "boot",
            "stress",
            "--minutes",
            "1",
        ],
        boots: true,
    },
];

/// As a shell would take it.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.environment {
            write!(f, "{name}={value} ")?;
        }
        write!(f, "cargo {}", self.cargo.join(" "))
    }
}

impl Step {
    /// Runs its command.
    ///
    /// # Errors
    /// If the command does not end well: the last lines of its output, where no terminal shows them.
    fn run(&self) -> Result<Passed, Vec<String>> {
        let mut command = cargo::command();
        command
            .args(self.cargo)
            .envs(self.environment.iter().copied());
        let watched = io::stdout().is_terminal();
        if !watched {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let last = Mutex::new(VecDeque::new());
        let status = command.spawn().and_then(|mut child| {
            let (output, errors) = (child.stdout.take(), child.stderr.take());
            thread::scope(|scope| {
                if let Some(output) = output {
                    scope.spawn(|| pass_on(output, io::stdout(), &last));
                }
                if let Some(errors) = errors {
                    scope.spawn(|| pass_on(errors, io::stderr(), &last));
                }
                child.wait()
            })
        });
        let mut last: Vec<String> = last.into_inner().unwrap_or_default().into();
        match status {
            Ok(status) if status.success() => return Ok(Passed::Whole),
            Ok(status) if status.code() == Some(SKIPPED.into()) => return Ok(Passed::Skipped),
            Ok(status) if !watched => last.push(status.to_string()),
            Ok(_) => {}
            Err(error) => last.push(format!("cargo does not start: {error}")),
        }
        Err(last)
    }
}

/// What came of a step that did not fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Passed {
    /// It has shown what it shows.
    Whole,
    /// It has shown nothing: a tool is missing, and it has said which.
    Skipped,
}

/// What a step ends with that lacks a tool. It is automake's number; the smaller ones mean failures of cargo, pytest
/// and `quell`.
const SKIPPED: u8 = 77;

/// How many lines of a step that failed are repeated at the end.
const REPEATED: usize = 30;

/// Passes lines on as they come, and keeps the last ones.
fn pass_on(from: impl Read, mut to: impl Write, last: &Mutex<VecDeque<String>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    // What cannot be read or written any more ends this output and not the step.
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let _ = to.write_all(&line).and_then(|()| to.flush());
        let said = String::from_utf8_lossy(&line).trim_end().to_owned();
        line.clear();
        if let Ok(mut last) = last.lock() {
            if last.len() == REPEATED {
                last.pop_front();
            }
            last.push_back(said);
        }
    }
}

const USAGE: &str = "\
cargo xtask ci [--without-emulators] [STEP ...]
    runs all steps, or the named ones
cargo xtask list
    says what the steps are
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
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
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
    let mut results = Vec::new();
    for step in run {
        println!("\n== {}: {}\n   {step}", step.name, step.shows);
        let begun = Instant::now();
        let result = step.run();
        results.push((step, result, begun.elapsed().as_secs()));
    }
    for (step, result, _) in &results {
        if let Err(last) = result
            && !last.is_empty()
        {
            println!("\n== {} FAILED; the end of what it said:", step.name);
            for line in last {
                println!("   {line}");
            }
        }
    }
    println!();
    for (step, result, seconds) in &results {
        match result {
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
    if results.iter().all(|(_, result, _)| result.is_ok()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
