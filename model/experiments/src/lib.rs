//! Runs experiments on the machine in software that predicts costs ([`quell_clock`]), and has the model's commands.
//!
//! * [`trial`]: one run of a workload on a machine under a policy; [`run`] turns it into data.
//! * [`jobs`]: many trials on all cores of the host, longest first.
//! * [`headlines`] and [`reproduce`]: published figures beside predictions.
//! * [`held_out`]: published tables that were not used for calibration.
//! * [`guards`]: the cost of each guard, that is, of each check or flush that makes a mechanism safe.
//! * [`lines`]: the cache lines that moved between cores, and the code that moved them.
//! * [`scale`] and [`sweep`]: growing numbers of CPUs, and grids of runs; [`results`] merges their parts.
//! * [`report`]: all of it on one page.
//! * [`command`]: the commands; [`output`], [`table`], [`options`] and [`usage`] serve all commands of `quell`.
//!
//! S0 to S4 number the engine's mechanisms: batching, extents, tags, lazy unmap and remote flush.
//!
//! The same trial returns the same figures on every host if the program's allocator is
//! [`quell_vm::sim::LineAllocator`] or [`memory::Allocator`]. That's necessary because the engine's words are in the
//! host's memory, and the model depends on which of them share a cache line.
//!
//! The program of this crate, `quell-model`, has the model's commands alone. `cargo run` builds it, because the rest of
//! `quell` takes twice as long to build; [`rest`] hands other commands over. The commands are in the library, because
//! Cargo compiles a library while its dependencies are still being built, but a binary only afterwards.

// We match every variant by name, so that a new one isn't silently ignored.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

pub mod charts;
pub mod command;
pub mod cpu_time;
pub mod guards;
mod headlines;
pub mod held_out;
pub mod here;
pub mod jobs;
pub mod kernels;
mod lines;
pub mod machines;
pub mod memory;
pub mod mutants;
pub mod numbers;
pub mod options;
pub mod output;
pub mod policies;
pub mod progress;
mod report;
pub mod reproduce;
pub mod rest;
pub mod results;
pub mod run;
pub mod scale;
pub mod sweep;
pub mod table;
pub mod trial;
pub mod usage;
pub mod workloads;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Makes the same run return the same figures on every thread.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: quell_vm::sim::LineAllocator = quell_vm::sim::LineAllocator;

/// Keeps TLBs coherent: records shootdowns, predicts costs, searches for races, boots kernels.
#[derive(Debug, Parser)]
#[command(name = "quell", bin_name = "quell", version, args_conflicts_with_subcommands = true)]
struct Cli<C: Subcommand> {
    #[command(subcommand)]
    command: Option<C>,
    /// `quell` alone does what `quell reproduce` does.
    #[command(flatten)]
    reproduce: command::reproduce::ReproduceArgs,
}

/// The subcommands of a program.
pub trait Commands: Subcommand {
    /// Runs the subcommand and returns its exit code.
    ///
    /// # Errors
    /// The subcommand's own.
    fn run(self) -> anyhow::Result<ExitCode>;
}

/// The model's commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare published figures with the model's predictions (`quell` alone does this)
    Reproduce(command::reproduce::ReproduceArgs),
    /// Compare published tables that were not used for calibration with the model's predictions
    HeldOut(command::held_out::HeldOutArgs),
    /// Run one workload on one machine with one policy
    Run(command::run::RunArgs),
    /// Run one workload on 1 to 1024 CPUs, without and with mechanisms
    Scale(command::scale::ScaleArgs),
    /// Run a grid of machines, policies, CPUs, parameters and seeds
    Sweep(command::sweep::SweepArgs),
    /// List workloads, machines, policies and parameters
    List(command::list::ListArgs),
}

impl Commands for Command {
    fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            Command::Reproduce(args) => command::reproduce::run(&args),
            Command::HeldOut(args) => command::held_out::run(&args),
            Command::Run(args) => command::run::run(args),
            Command::Scale(args) => command::scale::run(&args),
            Command::Sweep(args) => command::sweep::run(&args),
            Command::List(args) => command::list::run(&args).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Returns the command line with the exit codes below each command's help.
pub fn described<C: Subcommand>() -> clap::Command {
    fn with_codes(command: clap::Command) -> clap::Command {
        let more = command.get_after_help().map(|more| format!("{more}\n\n"));
        let help = more.unwrap_or_default() + usage::EXIT_CODES;
        command.after_help(help).mut_subcommands(with_codes)
    }
    with_codes(Cli::<C>::command())
}

fn execute<C: Commands>(cli: Cli<C>) -> anyhow::Result<ExitCode> {
    match cli.command {
        None => {
            // In a pipe we print only the table, as we do if there are options.
            if std::env::args_os().len() == 1 && std::io::stdout().is_terminal() {
                here::say_first(command::reproduce::command());
            }
            command::reproduce::run(&cli.reproduce)
        }
        Some(command) => command.run(),
    }
}

/// Parses the process's arguments. Help and the version are printed to standard output like any other result.
fn parse<C: Commands>() -> Result<Cli<C>, ExitCode> {
    if let Some(why) = usage::of_controls() {
        note!("error: {why}");
        return Err(ExitCode::from(2));
    }
    let matched = described::<C>().try_get_matches();
    matched.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|told| {
        if told.use_stderr() {
            note!("error: {}", usage::refusal(&told, described::<C>()));
            return ExitCode::from(2);
        }
        let text = told.render();
        if output::colour() {
            output::write_coloured(&text.ansi().to_string());
        } else {
            output::write(&text.to_string());
        }
        ExitCode::SUCCESS
    })
}

/// Prints a command's error and returns its exit code.
fn failed(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref::<rayon::ThreadPoolBuildError>() {
        Some(why) => note!("error: {}", output::without_threads(why)),
        None => note!("error: {}", usage::fit(&format!("{error:#}"))),
    }
    if error.is::<usage::Usage>() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// Runs the command that the process's arguments describe and returns its exit code.
pub fn main<C: Commands>() -> ExitCode {
    output::guarded(|| match parse::<C>() {
        Ok(cli) => execute(cli).unwrap_or_else(|error| failed(&error)),
        Err(code) => code,
    })
}
