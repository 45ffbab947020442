//! Builds the copy with the listed mutants, and runs its programs.

use crate::tree;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Compiler flags for the copy, which suppress warnings about its choices.
pub const CFG: &str = "--cfg quell_mutants -Awarnings";

/// Updates the copy, and creates a cargo command in it with its own build folder. Packages at the same place in two
/// workspaces have the same name.
///
/// # Errors
/// If the copy can't be made.
pub fn cargo(root: &Path) -> io::Result<Command> {
    tree::copy(root)?;
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    if !flags.contains(CFG) {
        flags = format!("{flags} {CFG}").trim().to_string();
    }
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(tree::place(root))
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", tree::build(root));
    Ok(command)
}

/// Builds an optimised program of the copy and returns its path. Cargo's progress is written to standard error.
///
/// # Errors
/// If the copy can't be made or doesn't compile, or there is no cargo.
pub fn program(root: &Path, name: &str) -> io::Result<PathBuf> {
    let mut build = cargo(root)?;
    // No package: it would decide the features of shared crates, and another program would build those again.
    build.args(["build", "--release", "--locked", "--bin", name]);
    // Tests and scripts read the output; only people need to see a successful build.
    if !io::IsTerminal::is_terminal(&io::stderr()) {
        build.arg("--quiet");
    }
    let status = build.stdout(Stdio::null()).status().map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cargo, which builds the mutants: {error}"),
        )
    })?;
    if !status.success() {
        return Err(io::Error::other("the copy with the mutants does not build"));
    }
    Ok(place(root, name))
}

fn place(root: &Path, name: &str) -> PathBuf {
    let program = tree::build(root).join("release").join(name);
    program.with_extension(env::consts::EXE_EXTENSION)
}

/// Returns whether this program of the copy was built before.
pub fn is_built(root: &Path, name: &str) -> bool {
    place(root, name).exists()
}
