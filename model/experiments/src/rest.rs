//! The program `quell-model`, which hands commands that it doesn't have over to `quell`.
//!
//! `cargo run` builds `quell-model` alone, in half the time. For any other command we run `cargo` again, which builds the
//! rest. So `cargo run -- COMMAND` works for every command of `quell`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Result, ensure};
use quell_mutants::run::succeeds;

use crate::mutants::{checkout, exec};
use crate::output::note;
use crate::usage::usage;
use crate::{described, failed, output};

/// Returns whether these arguments ask for help with the whole of `quell`, or for a command that isn't the model's.
fn is_of_rest(arguments: &[OsString], model: &clap::Command) -> bool {
    let asks_help = |word: &OsString| word == "--help" || word == "-h";
    let command = match arguments {
        [help, command, ..] if help == "help" => command,
        [first, ..] => first,
        [] => return false,
    };
    match command.as_encoded_bytes().starts_with(b"-") {
        true => arguments.iter().any(asks_help),
        false => model.find_subcommand(command).is_none(),
    }
}

/// Returns the command that builds `quell`.
fn whole(cargo: &OsStr, checkout: &Path) -> Command {
    let mut command = Command::new(cargo);
    command.arg("build");
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    // No package: it would decide the features of shared crates, and we would build those again.
    command.args(["--bin", "quell", "--manifest-path"]);
    command.arg(checkout.join("Cargo.toml"));
    command
}

fn hand_over(arguments: &[OsString]) -> Result<ExitCode> {
    let Some(cargo) = env::var_os("CARGO") else {
        let word = arguments[0].display();
        return Err(usage(format_args!(
            "{word}: this program has only the model's commands; `cargo install --path cli` installs `quell`, with all"
        )));
    };
    let built = env::current_exe()?.with_file_name("quell");
    let built = built.with_extension(env::consts::EXE_EXTENSION);
    if !built.exists() {
        note!("building the rest of quell (only once, and when the source changes)");
    }
    ensure!(succeeds(&mut whole(&cargo, &checkout()?))?, "the rest of quell does not build");
    let mut quell = Command::new(built);
    quell.args(arguments);
    exec(quell)
}

/// Runs the process's command, or hands it over, and returns its exit code.
pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    match is_of_rest(&arguments, &described::<crate::Command>()) {
        true => output::guarded(|| hand_over(&arguments).unwrap_or_else(|error| failed(&error))),
        false => crate::main::<crate::Command>(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn only_what_the_model_has_is_answered_without_the_rest() {
        let is_of_rest = |line| is_of_rest(&words(line), &described::<crate::Command>());
        for line in ["", "--details", "--version", "run dontneed", "run --help", "help list"] {
            assert!(!is_of_rest(line), "{line}");
        }
        for line in ["help", "--help", "-h", "--json -h", "record -- true", "help record", "rn"] {
            assert!(is_of_rest(line), "{line}");
        }
    }
}
