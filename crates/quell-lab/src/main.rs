//! The command `quell`.
<<<<<<< HEAD

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
    /// Measure this machine: zeroing, and what shootdowns cost the running kernel
    Measure(measure::MeasureArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Measure(args) => args.run(),
    }
=======
use clap::Parser;
mod measure;
#[derive(Parser)]
#[command(name = "quell")]
enum Cli {
    /// Measure this machine
    Measure(measure::MeasureArgs),
}
fn main() -> anyhow::Result<std::process::ExitCode> {
    let Cli::Measure(args) = Cli::parse();
    measure::run(args)
>>>>>>> 2659080 (Measure zeroing: every strategy and length beside memset, page by page and the peak)
}
