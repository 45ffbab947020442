//! Builds the copy with the listed mutants, and runs its programs.

use crate::tree;
use std::env;
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
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
    if !succeeds(&mut build)? {
        return Err(io::Error::other("the copy with the mutants does not build"));
    }
    Ok(place(root, name))
}

/// Runs cargo, and returns whether it succeeded. On a terminal, it shows its progress. Tests and scripts read other
/// output, so there we only show errors, and a message if cargo waits for another one.
///
/// # Errors
/// If there is no cargo.
pub fn succeeds(cargo: &mut Command) -> io::Result<bool> {
    cargo.stdout(Stdio::null());
    let named = |error: io::Error| io::Error::new(error.kind(), format!("starting cargo: {error}"));
    if io::stderr().is_terminal() {
        return Ok(cargo.status().map_err(named)?.success());
    }
    let mut child = cargo.stderr(Stdio::piped()).spawn().map_err(named)?;
    let said = child.stderr.take();
    let said = said.map(|said| relay(BufReader::new(said), &mut io::stderr()));
    let success = child.wait()?.success();
    if !success {
        // If standard error is closed, nobody reads the errors.
        let _ = io::stderr().write_all(said.transpose()?.unwrap_or_default().as_bytes());
    }
    Ok(success)
}

/// Writes cargo's message that it waits to `shown` as soon as it arrives. Returns the other lines.
fn relay(lines: impl BufRead, shown: &mut impl Write) -> io::Result<String> {
    let mut others = String::new();
    for line in lines.lines() {
        let line = line?;
        if line.trim_start().starts_with("Blocking ") {
            // If standard error is closed, nobody reads this.
            let _ = writeln!(shown, "{line}");
        } else {
            others.extend([&line, "\n"]);
        }
    }
    Ok(others)
}

fn place(root: &Path, name: &str) -> PathBuf {
    let program = tree::build(root).join("release").join(name);
    program.with_extension(env::consts::EXE_EXTENSION)
}

/// Returns whether this program of the copy was built before.
pub fn is_built(root: &Path, name: &str) -> bool {
    place(root, name).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_another_cargo_is_shown_and_progress_is_not() {
        let waits = "    Blocking waiting for file lock on build directory\n";
        let cargo = format!("   Compiling a v1\n{waits}error: b\n");
        let mut shown = Vec::new();
        let others = relay(cargo.as_bytes(), &mut shown).unwrap();
        assert_eq!(shown, waits.as_bytes());
        assert_eq!(others, "   Compiling a v1\nerror: b\n");
    }

    #[cfg(unix)]
    #[test]
    fn a_build_that_fails_is_no_success() {
        for (command, success) in [("true", true), ("false", false)] {
            assert_eq!(succeeds(&mut Command::new(command)).unwrap(), success);
        }
        let missing = succeeds(&mut Command::new("/no/cargo")).unwrap_err();
        assert!(missing.to_string().starts_with("starting cargo: "), "{missing}");
    }
}
