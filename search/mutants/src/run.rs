//! The copy with the mutants of the lists, built, and its programs, run.

use crate::tree;
use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The compiler's flags for the copy, whose choices it would have much to say of.
pub const CFG: &str = "--cfg quell_mutants -Awarnings";

/// A cargo in the copy, which is brought up to date before. It builds in a folder of its own: a package at the same
/// place in two workspaces has one name there.
///
/// # Errors
/// If the copy cannot be made.
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

/// Builds a program of the copy, optimised, and says where it is. What cargo says of its progress goes to the standard
/// error output.
///
/// # Errors
/// If the copy cannot be made or does not compile, or there is no cargo.
pub fn program(root: &Path, package: &str, name: &str) -> io::Result<PathBuf> {
    let mut build = cargo(root)?;
    build.args([
        "build",
        "--release",
        "--locked",
        "--package",
        package,
        "--bin",
        name,
    ]);
    // Tests and scripts read what is printed; only a person needs to see a build that goes well.
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
    let program = tree::build(root).join("release").join(name);
    Ok(program.with_extension(env::consts::EXE_EXTENSION))
}

/// Whether something was built there before.
pub fn is_built(root: &Path) -> bool {
    tree::build(root).join("release").is_dir()
}
