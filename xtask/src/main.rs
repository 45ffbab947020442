//! `cargo xtask ci`: the checks that a change must pass beyond `cargo test`.
//!
//! A check that takes minutes or needs an emulator is a step of this command ([`steps`]): a command line that you can
//! also type. We run two steps at a time, and at the end one by one those that need the machine alone. The output of
//! each is in `target/ci/STEP.log`; the last lines of a failed step are printed, too.

mod api;
mod ci;
mod mutate;
mod steps;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fmt, fs};

const USAGE: &str = "\
cargo xtask ci [--without-emulators] [STEP ...]
    runs all steps, or the named ones
cargo xtask list
    says what the steps are
cargo xtask lints
    runs clippy on everything, with all unit tests
cargo xtask api [--accept]
    compares the public interfaces with those kept in docs/api, or keeps the new ones
cargo xtask package
    builds the crates that others use from what would be published of them
cargo xtask mutate [--only N] [--file PART] [--sample K [--seed S]] [--schedules N] [--generated-first] [--tests]
                   [--thorough] [--jobs N] [--json]
    tries mutants of the engine and the memory manager that a program makes: all, those of files whose path contains
    PART, or K drawn by the seed; with --schedules generated programs get N schedules for each; with --generated-first
    they judge before tests and scenarios; with --tests only the crates' tests judge
cargo xtask copy CARGO'S ARGUMENTS ...
    runs cargo in the copy of the workspace that holds the mutants of search/mutants/mutants
cargo xtask mutate --list
    says what they are";

/// Returns the root of the workspace.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns a command for the cargo that runs this program, in the workspace.
fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Runs a command.
///
/// # Errors
/// If it doesn't start or fails. The error names it.
fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}")),
        Err(error) => Err(format!("{command:?} does not start: {error}")),
    }
}

/// Runs clippy on the workspace, which must report nothing.
///
/// `--all-targets` omits the unit tests of crates with `test = false`. So we run clippy again for libraries and
/// programs with their unit tests; it reuses the first run's results.
fn lints() -> Result<(), String> {
    for targets in [&["--all-targets"][..], &["--lib", "--bins", "--profile", "test"]] {
        let mut clippy = cargo();
        clippy.args(["clippy", "--workspace", "--features"]);
        clippy.arg("quell-threads/loom,quell-workloads/conformance");
        run(clippy.args(targets).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Builds every crate from its archive, against the archives of the others.
///
/// Cargo keeps those unpacked in its home, by name and version. Their folder's name begins with a hyphen, because it
/// belongs to no registry. We package a version many times before we publish it, so we remove those folders first.
fn package() -> Result<(), String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let sources = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    for folder in sources.into_iter().flatten().flatten() {
        if folder.file_name().to_string_lossy().starts_with('-') {
            let path = folder.path();
            fs::remove_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
    }
    let mut package = cargo();
    // Archives lack the workspace's profiles. Without debug information the builds take less time.
    package.env("CARGO_PROFILE_DEV_DEBUG", "false");
    run(package.args(["package", "--workspace", "--allow-dirty"]))
}

/// Turns a result into an exit code, and prints the error.
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
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let why = match &words[..] {
        ["ci", rest @ ..] => match ci::chosen(rest) {
            Ok(steps) => return ci::run(&steps),
            Err(why) => why,
        },
        ["list"] => {
            let line = |step: &steps::Step| {
                format!("{:14} {}\n               {step}\n", step.name, step.shows)
            };
            let list: String = steps::STEPS.iter().map(line).collect();
            // A reader may close the pipe early, for example `head`.
            let _ = std::io::stdout().write_all(list.as_bytes());
            return ExitCode::SUCCESS;
        }
        ["lints"] => return told(lints()),
        ["api"] => return told(api::run(false)),
        ["api", "--accept"] => return told(api::run(true)),
        ["package"] => return told(package()),
        ["copy", rest @ ..] => match quell_mutants::run::cargo(root()) {
            Ok(mut cargo) => return told(run(cargo.args(rest))),
            Err(why) => why.to_string(),
        },
        ["mutate", ..] => match mutate::asked(&arguments[1..]) {
            Ok(asked) => return told(mutate::run(root(), &asked)),
            Err(why) => why,
        },
        _ => "name a command".into(),
    };
    eprintln!("{why}\n{USAGE}");
    ExitCode::from(2)
}
