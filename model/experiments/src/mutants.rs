//! Commands with mutants. They run in a copy of the workspace that contains the mutants and is built on demand.

use anyhow::Context;
use quell_mutants::{list, run};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::output::note;

/// Runs the same command with the copy's program, and returns its exit code. Returns `None` if this is the copy. Builds
/// the copy first if the source has changed.
///
/// # Errors
/// If this isn't run from a checkout, cargo is missing, or the copy doesn't build.
pub fn in_copy(program: &str) -> anyhow::Result<Option<ExitCode>> {
    if list::IN_COPY {
        return Ok(None);
    }
    let root = checkout()?;
    if !run::is_built(&root, program) {
        note!("building a copy of quell with the mutants (only once, and when the source changes)");
    }
    let program = run::program(&root, program)?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1));
    Ok(Some(exec(command)?))
}

/// Returns the checkout that contains the source of this program.
///
/// # Errors
/// If the source isn't there.
pub fn checkout() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let missing = || format!("no source at {}: run this from a checkout", root.display());
    root.canonicalize().with_context(missing)
}

/// Replaces this process with the command, so that the command receives signals.
///
/// # Errors
/// If the command doesn't start.
#[cfg(unix)]
pub fn exec(mut command: Command) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt;
    Err(command.exec().into())
}

/// Runs the command and returns its exit code.
///
/// # Errors
/// If the command doesn't start.
#[cfg(not(unix))]
pub fn exec(mut command: Command) -> anyhow::Result<ExitCode> {
    let code = command.status()?.code().unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
