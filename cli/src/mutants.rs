//! Commands with mutants. They run in a copy of the workspace that contains the mutants and is built on demand.

use crate::output::note;
use quell_boot::toolchain;
use quell_mutants::{list, run};
use std::process::{Command, ExitCode};

/// Runs the same command in the copy and returns its exit code, or returns `None` if this already is the copy. Builds
/// the copy first if the source has changed.
///
/// # Errors
/// If this isn't run from a checkout, cargo is missing, or the copy doesn't build.
pub fn in_copy() -> anyhow::Result<Option<ExitCode>> {
    if list::IN_COPY {
        return Ok(None);
    }
    let root = toolchain::source("../..")?;
    if !run::is_built(&root) {
        note!("building a copy of quell with the mutants (only once, and when the source changes)");
    }
    let program = run::program(&root, "quell-cli", "quell")?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1));
    Ok(Some(ended(command)?))
}

/// Replaces this process with the command, so that the command receives signals.
#[cfg(unix)]
fn ended(mut command: Command) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().into())
}

#[cfg(not(unix))]
fn ended(mut command: Command) -> anyhow::Result<ExitCode> {
    let code = command.status()?.code().unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
