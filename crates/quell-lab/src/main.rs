//! The command `quell`.
//!
//! Each subcommand has a module. A mistake of the user exits with 2, a failure or a broken contract
//! with 1.

mod boot;
mod list;
mod machines;
mod measure;
mod options;
mod policy;
mod run;
mod table;
mod trial;
mod usage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps translation caches coherent: experiments, exploration, boots and measurements.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one workload on one machine with one policy
    Run(run::RunArgs),
    /// List workloads, machines, policies and what each parameter means
    List(list::ListArgs),
    /// Boot the engine on a real MMU, x86-64 and AArch64, in an emulator
    Boot(boot::BootArgs),
    /// Measure this machine: zeroing, and what shootdowns cost the running kernel
    Measure(measure::MeasureArgs),
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args).map(|()| ExitCode::SUCCESS),
        Command::Boot(args) => boot::run(args),
        Command::Measure(args) => measure::run(args),
    }
}

fn main() -> ExitCode {
    execute(Cli::parse()).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        if error.is::<usage::Usage>() {
            ExitCode::from(2)
        } else {
            ExitCode::FAILURE
        }
    })
}
