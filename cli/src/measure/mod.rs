//! `quell measure`: figures from real hardware, next to the model's predictions.
//!
//! Each prints either tables for a person or one JSON document for a program.

#[cfg(target_os = "linux")]
pub mod clear;
pub mod engine;
#[cfg(target_os = "linux")]
pub mod host;
#[cfg(target_os = "linux")]
pub mod paths;

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
    /// Measure zeroing: each strategy at each length, and the engine's choices
    #[cfg(target_os = "linux")]
    Clear(clear::ClearArgs),
    /// Measure the engine: nanoseconds and cycles of each operation, beside the one it replaces
    Engine(engine::EngineArgs),
    #[cfg(target_os = "linux")]
    Host(host::HostArgs),
    #[cfg(target_os = "linux")]
    Paths(paths::PathsArgs),
}

/// Measures and prints.
///
/// # Errors
///
/// As the chosen measurement has them.
pub fn run(args: MeasureArgs) -> anyhow::Result<ExitCode> {
    match args.what {
        #[cfg(target_os = "linux")]
        What::Clear(args) => clear::run(&args),
        What::Engine(args) => engine::run(&args),
        #[cfg(target_os = "linux")]
        What::Host(args) => args.run(),
        #[cfg(target_os = "linux")]
        What::Paths(args) => args.run(),
    }
}
