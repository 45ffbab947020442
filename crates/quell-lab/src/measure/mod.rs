<<<<<<< HEAD
//! `quell measure`: figures from real hardware, next to the model's predictions.

#[cfg(target_os = "linux")]
mod host;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// What `quell measure` takes.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    #[command(subcommand)]
    what: What,
}

/// What to measure.
#[derive(Debug, Subcommand)]
enum What {
    #[cfg(target_os = "linux")]
    Host(host::HostArgs),
}

impl MeasureArgs {
    /// Measures and prints.
    ///
    /// # Errors
    /// As the chosen measurement has them.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.what {
            #[cfg(target_os = "linux")]
            What::Host(args) => args.run(),
        }
=======
//! `quell measure`: what this machine's hardware and kernel do, measured.
//!
//! Every measurement is bounded in time, shows progress, and prints either a table for a person or
//! one JSON document for a program. Where the machine, the kernel or the permissions do not allow
//! one, it says so and why, and goes on with the rest.

use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

mod clear;

/// The arguments of `quell measure`.
#[derive(Args, Debug)]
pub struct MeasureArgs {
    #[command(subcommand)]
    what: Measurement,
}

/// What to measure.
#[derive(Subcommand, Debug)]
enum Measurement {
    /// Zeroing: every way to clear memory at every length, and which of them the engine picks
    Clear(clear::ClearArgs),
}

/// Runs the measurement that was asked for.
///
/// # Errors
///
/// If the measurement is impossible on this machine, or a file cannot be written.
pub fn run(args: MeasureArgs) -> Result<ExitCode> {
    match args.what {
        Measurement::Clear(args) => clear::run(&args),
>>>>>>> 2659080 (Measure zeroing: every strategy and length beside memset, page by page and the peak)
    }
}
