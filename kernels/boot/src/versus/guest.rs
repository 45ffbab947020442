//! Builds the program that performs the workloads on Linux.
//!
//! It's a separate package (`guest/`), linked statically so that the initial file system needs nothing else. We build
//! it on demand, beside the host's own build.

use crate::toolchain;
use anyhow::{Context, bail};
use std::path::PathBuf;

/// The guest's target, for any distribution that links statically.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the guest and returns the path of its program. Cargo shows its own progress.
///
/// # Errors
/// If there is no compiler, or the build fails.
pub fn build() -> anyhow::Result<PathBuf> {
    let cargo = toolchain::which("cargo")
        .context("cargo is not installed; it builds the program that Linux runs")?;
    let directory = toolchain::target_directory("guest");
    let status = toolchain::command(&cargo)
        .current_dir(toolchain::source("guest")?)
        .args(["build", "--locked", "--release", "--target", TARGET])
        .arg("--target-dir")
        .arg(&directory)
        .env("RUSTFLAGS", "-Ctarget-feature=+crt-static")
        .status()
        .with_context(|| format!("starting {}", cargo.display()))?;
    if !status.success() {
        bail!(
            "building the program that Linux runs failed; it needs the target {TARGET} and a C \
             library to link statically (package libc6-dev)"
        );
    }
    Ok(directory.join(TARGET).join("release/init"))
}
