//! Commands that make mistakes: they run in the copy of the workspace that holds the mutants, which is built for that.

use crate::output::note;
use quell_boot::toolchain;
use quell_mutants::{list, run};
use std::process::{Command, ExitCode};

/// Does the same command in the copy, whose exit code it returns; `None` in the copy itself. The copy is built where it
/// is not as the source is.
///
/// # Errors
/// If this is not run from a checkout, there is no cargo, or the copy does not build.
pub fn in_copy() -> anyhow::Result<Option<ExitCode>> {
    if list::IN_COPY {
        return Ok(None);
    }
    let root = toolchain::source("../..")?;
    if !run::is_built(&root) {
        note!("building the copy that makes mistakes: once, and when the source changes");
    }
    let program = run::program(&root, "quell-cli", "quell")?;
    let mut command = Command::new(&program);
    command.args(std::env::args_os().skip(1));
    Ok(Some(ended(command)?))
}

/// In place of this process, so that signals reach it.
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
