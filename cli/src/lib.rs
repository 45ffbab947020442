//! The command `quell`.
//!
//! Each subcommand has a module that parses its arguments, calls a library and prints the result. The libraries are
//! `quell-adversary`, `quell-host`, `quell-record` and `quell-boot`. The model's commands are in `quell-model`, with the
//! output and arguments that all commands share.
//!
//! The command is a library with a small `main`. Cargo compiles a library while its dependencies are still being built,
//! but a binary only afterwards.

// We match every variant by name, so that a new one isn't silently ignored.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod boot;
mod explore;
mod hunt;
#[cfg(test)]
mod layout;
mod measure;
mod merge;
mod predict;
mod record;
mod stress;
mod versus;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use quell_model::memory::Allocator;
use quell_model::{Commands, described, output};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Model(quell_model::Command),
    /// Join the parts of a sweep or of a search
    Merge(merge::MergeArgs),
    /// Search for interleavings that break the contract, or for known mistakes
    Explore(explore::ExploreArgs),
    /// Run one workload on threads of this host, one per CPU, and check every access
    Stress(stress::StressArgs),
    /// Boot a kernel with the engine in an emulator: x86-64, AArch64 and RISC-V
    Boot(boot::BootArgs),
    Hunt(hunt::HuntArgs),
    /// Measure this machine: zeroing, and the cost of shootdowns in the running kernel
    Measure(measure::MeasureArgs),
    /// Predict the savings of each mechanism on this host, from `measure host`'s machine file
    Predict(predict::PredictArgs),
    Record(record::RecordArgs),
    Advise(record::advise::AdviseArgs),
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    Top(record::top::TopArgs),
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    Try(record::attempt::TryArgs),
    /// Compare a stock Linux with Linux on the engine, in one emulator
    Versus(versus::VersusArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Returns a description of the command line: every subcommand, option and kind of value. It's for programs that visit
/// all of them; we don't promise to keep the names.
pub fn command() -> clap::Command {
    let mut command = described::<Command>();
    command.build();
    command
}

impl Commands for Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Model(command) => command.run(),
            Command::Merge(args) => merge::run(&args),
            Command::Explore(args) => explore::run(args),
            Command::Stress(args) => stress::run(&args),
            Command::Boot(args) => boot::run(args),
            Command::Hunt(args) => hunt::run(args),
            Command::Measure(args) => measure::run(args),
            Command::Predict(args) => predict::run(&args),
            Command::Record(args) => record::run(&args),
            Command::Advise(args) => record::advise::run(&args),
            #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
            Command::Top(args) => record::top::run(&args),
            #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
            Command::Try(args) => record::attempt::run(&args),
            Command::Versus(args) => versus::run(args),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut described::<Command>(), "quell", &mut script);
                output::write(&String::from_utf8(script)?);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Checks that the file of an option can be written, if the option is given.
fn destination(
    option: &'static str,
    path: Option<&Path>,
) -> anyhow::Result<Option<output::Destination>> {
    path.map(|path| output::Destination::open(option, Some(path), "")).transpose()
}

/// Runs the command that the process's arguments describe and returns its exit code.
pub fn main() -> ExitCode {
    quell_model::main::<Command>()
}

/// The chapters of the documents that contain code, so that `cargo test` compiles it.
#[cfg(doctest)]
mod chapters {
    #[doc = include_str!("../../docs/guide/architecture.md")]
    mod architecture {}
    #[doc = include_str!("../../docs/guide/experiment.md")]
    mod experiment {}
    #[doc = include_str!("../../docs/guide/machine-file.md")]
    mod machine_file {}
    #[doc = include_str!("../../docs/guide/mutant.md")]
    mod mutant {}
    #[doc = include_str!("../../docs/guide/violation.md")]
    mod violation {}
}

#[cfg(test)]
mod tests {
    use quell_model::here::Host;
    use quell_model::usage::EXIT_CODES;

    fn assert_told_once(mut command: clap::Command) {
        let help = command.render_long_help().to_string();
        assert_eq!(help.matches(EXIT_CODES).count(), 1, "{help}");
        assert_eq!(help.matches("xit code").count(), 1, "{help}");
        for inner in command.get_subcommands() {
            if inner.get_name() != "help" {
                assert_told_once(inner.clone());
            }
        }
    }

    #[test]
    fn the_help_of_every_command_lists_exit_codes_once() {
        assert_told_once(crate::command());
    }

    #[test]
    fn the_commands_that_are_suggested_are_taken() {
        let host = |root| Host { linux: Some("6.12.1".into()), cpus: 2, root };
        for [command, _] in host(true).commands("quell") {
            let told = crate::command().try_get_matches_from(command.split_whitespace());
            assert!(told.is_ok(), "{command}: {}", told.unwrap_err());
        }
    }
}
