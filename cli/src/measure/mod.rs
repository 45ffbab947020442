//! `quell measure`: figures from real hardware, beside the model's predictions.
//!
//! Each subcommand prints tables for a person or one JSON document for a program.

#[cfg(target_os = "linux")]
pub mod clear;
pub mod engine;
#[cfg(target_os = "linux")]
pub mod host;
#[cfg(target_os = "linux")]
pub mod paths;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// The arguments of `quell measure`.
#[derive(Debug, Args)]
pub struct MeasureArgs {
    #[command(subcommand)]
    what: MeasureTarget,
}

/// The measurement to run.
#[derive(Debug, Subcommand)]
enum MeasureTarget {
    /// Measure zeroing: each strategy at each length, and the engine's choices
    #[cfg(target_os = "linux")]
    Clear(clear::ClearArgs),
    /// Measure the engine: nanoseconds and cycles of each operation, and of the operation that it replaces
    Engine(engine::EngineArgs),
    #[cfg(target_os = "linux")]
    Host(host::HostArgs),
    #[cfg(target_os = "linux")]
    Paths(paths::PathsArgs),
}

/// Parses the length of a measurement in seconds.
#[cfg(target_os = "linux")]
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (1.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 1 to 3600".into()),
    }
}

pub fn run(args: MeasureArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        #[cfg(target_os = "linux")]
        MeasureTarget::Clear(args) => clear::run(&args),
        MeasureTarget::Engine(args) => engine::run(&args),
        #[cfg(target_os = "linux")]
        MeasureTarget::Host(args) => args.run(),
        #[cfg(target_os = "linux")]
        MeasureTarget::Paths(args) => args.run(),
    }
}
