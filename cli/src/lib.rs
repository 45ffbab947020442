//! The command `quell`.
//!
//! Each subcommand has a module that parses its arguments, calls a library and prints the result. The libraries are
//! `quell-adversary`, `quell-experiments`, `quell-host`, `quell-record` and `quell-boot`.
//!
//! The command is a library with a small `main`. Cargo compiles a library while its dependencies are still being built,
//! but a binary only afterwards. This makes the first `cargo run` half a minute shorter.

// We match every variant by name, so that a new one isn't silently ignored.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod boot;
mod explore;
mod held_out;
mod here;
mod hunt;
#[cfg(test)]
mod layout;
mod list;
mod measure;
mod memory;
mod merge;
mod mutants;
mod numbers;
mod options;
mod output;
mod predict;
mod record;
mod refusal;
mod reproduce;
mod results;
mod run;
mod scale;
mod stress;
mod sweep;
mod table;
mod usage;
mod versus;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::note;

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::Allocator;

/// Keeps TLBs coherent: records shootdowns, predicts costs, searches for races, boots kernels.
#[derive(Debug, Parser)]
#[command(name = "quell", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// `quell` alone does what `quell reproduce` does.
    #[command(flatten)]
    reproduce: reproduce::ReproduceArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare published figures with the model's predictions (`quell` alone does this)
    Reproduce(reproduce::ReproduceArgs),
    /// Compare published tables that were not used for calibration with the model's predictions
    HeldOut(held_out::HeldOutArgs),
    /// Run one workload on one machine with one policy
    Run(run::RunArgs),
    /// Run one workload on 1 to 1024 CPUs, without and with mechanisms
    Scale(scale::ScaleArgs),
    /// Run a grid of machines, policies, CPUs, parameters and seeds
    Sweep(sweep::SweepArgs),
    /// Join the parts of a sweep or of a search
    Merge(merge::MergeArgs),
    /// List workloads, machines, policies and parameters
    List(list::ListArgs),
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
    #[cfg(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
    Top(record::top::TopArgs),
    #[cfg(all(
        target_os = "linux",
        any(target_arch = "x86_64", target_arch = "aarch64")
    ))]
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
    let mut command = described();
    command.build();
    command
}

/// Returns the command line with the exit codes below each command's help.
fn described() -> clap::Command {
    fn with_codes(command: clap::Command) -> clap::Command {
        let more = command.get_after_help().map(|more| format!("{more}\n\n"));
        let help = more.unwrap_or_default() + usage::EXIT_CODES;
        command.after_help(help).mut_subcommands(with_codes)
    }
    with_codes(Cli::command())
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        None => {
            // In a pipe we print only the table, as we do if there are options.
            if std::env::args_os().len() == 1 && std::io::stdout().is_terminal() {
                here::say_first(reproduce::command());
            }
            reproduce::run(&cli.reproduce)
        }
        Some(Command::Reproduce(args)) => reproduce::run(&args),
        Some(Command::HeldOut(args)) => held_out::run(&args),
        Some(Command::Run(args)) => run::run(args),
        Some(Command::Scale(args)) => scale::run(&args),
        Some(Command::Sweep(args)) => sweep::run(&args),
        Some(Command::Merge(args)) => merge::run(&args),
        Some(Command::List(args)) => list::run(args).map(|()| ExitCode::SUCCESS),
        Some(Command::Explore(args)) => explore::run(args),
        Some(Command::Stress(args)) => stress::run(&args),
        Some(Command::Boot(args)) => boot::run(args),
        Some(Command::Hunt(args)) => hunt::run(args),
        Some(Command::Measure(args)) => measure::run(args),
        Some(Command::Predict(args)) => predict::run(&args),
        Some(Command::Record(args)) => record::run(&args),
        Some(Command::Advise(args)) => record::advise::run(&args),
        #[cfg(all(
            target_os = "linux",
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        Some(Command::Top(args)) => record::top::run(&args),
        #[cfg(all(
            target_os = "linux",
            any(target_arch = "x86_64", target_arch = "aarch64")
        ))]
        Some(Command::Try(args)) => record::attempt::run(&args),
        Some(Command::Versus(args)) => versus::run(args),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut described(), "quell", &mut script);
            output::write(&String::from_utf8(script)?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Parses the process's arguments. Help and the version are printed to standard output like any other result.
fn parse() -> Result<Cli, ExitCode> {
    if let Some(why) = refusal::of_controls() {
        note!("error: {why}");
        return Err(ExitCode::from(2));
    }
    let matched = described().try_get_matches();
    matched
        .and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|told| {
            if told.use_stderr() {
                note!("error: {}", refusal::of(&told, described()));
                return ExitCode::from(2);
            }
            let text = told.render();
            if output::colour() {
                output::write(&text.ansi().to_string());
            } else {
                output::write(&text.to_string());
            }
            ExitCode::SUCCESS
        })
}

/// Runs the command that the process's arguments describe and returns its exit code.
pub fn main() -> ExitCode {
    output::guarded(|| {
        let cli = match parse() {
            Ok(cli) => cli,
            Err(code) => return code,
        };
        execute(cli).unwrap_or_else(|error| {
            match error.downcast_ref::<rayon::ThreadPoolBuildError>() {
                Some(why) => note!("error: {}", output::without_threads(why)),
                None => note!("error: {}", refusal::fit(&format!("{error:#}"))),
            }
            if error.is::<usage::Usage>() {
                ExitCode::from(2)
            } else {
                ExitCode::FAILURE
            }
        })
    })
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
