//! The model's commands.

pub mod held_out;
pub mod list;
pub mod reproduce;
pub mod run;
pub mod scale;
pub mod sweep;

use std::process::ExitCode;

use anyhow::{Result, bail};

/// Returns an error if a run failed, and exit code 1 if the contract was broken.
fn ended(failures: &[impl AsRef<str>], violations: u64) -> Result<ExitCode> {
    if !failures.is_empty() {
        let failures: Vec<_> = failures.iter().map(AsRef::as_ref).collect();
        bail!("{}", failures.join("; "));
    }
    Ok(if violations == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
