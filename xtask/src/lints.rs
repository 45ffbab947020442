//! `cargo xtask lints`: runs clippy, which must report nothing.
//!
//! `--all-targets` omits the unit tests of crates with `test = false`. So we run clippy again for libraries and
//! programs with their unit tests; it reuses the first run's results.

use crate::{cargo, run as command};

/// Runs clippy on the workspace.
///
/// # Errors
/// If clippy reports something or doesn't start.
pub fn run() -> Result<(), String> {
    for targets in [&["--all-targets"][..], &["--lib", "--bins", "--profile", "test"]] {
        let mut clippy = cargo();
        clippy.args(["clippy", "--workspace", "--features"]);
        clippy.arg("quell-threads/loom,quell-workloads/conformance");
        command(clippy.args(targets).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}
