//! The command `quell`.

mod boot;
mod measure;

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
    /// Boot the engine on a real MMU, x86-64 and AArch64, in an emulator
    Boot(boot::BootArgs),
    /// Measure this machine: zeroing, and what shootdowns cost the running kernel
    Measure(measure::MeasureArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Boot(args) => boot::run(args),
        Command::Measure(args) => measure::run(args),
    }
}
