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
    }
}
