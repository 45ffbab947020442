//! `cargo xtask lints`: clippy has nothing to say.
//!
//! `--all-targets` leaves out the unit tests of crates with `test = false`. So clippy runs a second time, for libraries
//! and programs with their unit tests; it keeps what it has looked at the first time.

use crate::{cargo, run as command};

/// # Errors
/// If clippy has something to say, after it has said it, or does not start.
pub fn run() -> Result<(), String> {
    for targets in [
        &["--all-targets"][..],
        &["--lib", "--bins", "--profile", "test"],
    ] {
        let mut clippy = cargo();
        clippy.args(["clippy", "--workspace", "--quiet", "--features"]);
        clippy.arg("quell-threads/loom,quell-workloads/conformance");
        command(clippy.args(targets).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}
