//! `cargo xtask lints`: clippy has nothing to say.
//!
//! `--all-targets` leaves out the unit tests of what says `test = false` in its manifest, because `cargo test` shall build
//! that once only. So clippy runs a second time, for libraries and programs with their unit tests; what it has looked at
//! the first time it does not look at again.

use std::path::Path;

use super::cargo;

/// What clippy looks at, each time that it runs.
const TIMES: [&[&str]; 2] = [
    &["--all-targets"],
    &["--lib", "--bins", "--profile", "test"],
];

/// # Errors
/// If clippy has something to say, after it has said it, or does not start.
pub fn run(root: &Path) -> Result<(), String> {
    for targets in TIMES {
        let status = cargo::command()
            .current_dir(root)
            .args(["clippy", "--workspace", "--quiet"])
            .args(["--features", "quell-book/html,quell-orderings/loom"])
            .args(targets)
            .args(["--", "-D", "warnings"])
            .status()
            .map_err(|error| format!("cargo does not start: {error}"))?;
        if !status.success() {
            return Err(format!("cargo clippy {}: {status}", targets.join(" ")));
        }
    }
    Ok(())
}
