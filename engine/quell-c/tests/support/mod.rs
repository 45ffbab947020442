//! Shared by the tests: compilers for C, libraries, and programs that end.
#![allow(dead_code)] // Each test uses a part.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of a file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Prints what can't be tested here, bypassing the test harness. Fails if QUELL_REQUIRE_C is set.
fn skip(what: &str) {
    assert!(std::env::var_os("QUELL_REQUIRE_C").is_none(), "{what}");
    let line = format!("SKIPPED: {what}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns the host's compiler that `variable` names, or `default`. Prints a note and returns `None` if there is none.
pub fn compiler(variable: &str, default: &str) -> Option<Command> {
    let name = std::env::var(variable).unwrap_or_else(|_| default.into());
    let there = Command::new(&name)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !there {
        skip(&format!("there is no compiler `{name}`: set {variable} to one"));
        return None;
    }
    Some(Command::new(name))
}

/// Returns a tool. Prints a note and returns `None` if it's missing.
pub fn tool(name: &str, how: &str) -> Option<Command> {
    if Command::new(name).arg("--version").output().is_err() {
        let line = format!("SKIPPED: there is no `{name}`: {how}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
        return None;
    }
    Some(Command::new(name))
}

/// Runs a command to its end. Returns whether it succeeded, and its output.
pub fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let text = format!("{command:?}: {}\n{text}", output.status);
    (output.status.success(), text)
}

/// Builds the static library for the host, with std in it, in the dev profile.
pub fn host_library() -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(source(""))
        .args(["rustc", "--lib", "--crate-type", "staticlib"])
        .args(["--message-format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("cargo runs");
    let said = BufReader::new(child.stderr.take().expect("its errors"));
    let said = std::thread::spawn(move || {
        let lines = said.lines().map(|line| line.expect("text"));
        let shown = lines.inspect(|line| {
            // The test harness would keep the reason for a wait until the test ends.
            if line.trim_start().starts_with("Blocking ") {
                let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
            }
        });
        shown.collect::<Vec<_>>().join("\n")
    });
    let output = child.wait_with_output().expect("cargo ends");
    let said = said.join().expect("its errors are read");
    assert!(output.status.success(), "{said}");
    let text = String::from_utf8(output.stdout).expect("text");
    let library = text.split('"').find(|word| word.ends_with("libquell_c.a")).expect("a library");
    library.into()
}

/// Builds the library for kernels. Prints a note and returns `None` where the target isn't installed.
pub fn kernel_library() -> Option<PathBuf> {
    kernel_library_with("")
}

/// Builds the library for kernels with these features; with the default ones if empty.
pub fn kernel_library_with(features: &str) -> Option<PathBuf> {
    kernel_library_of(&[("QUELL_FEATURES", features)])
}

/// Builds the library for kernels with these variables in the environment.
pub fn kernel_library_of(variables: &[(&str, &str)]) -> Option<PathBuf> {
    build_c(variables, &[])
}

/// Runs `scripts/build-c` and returns the path that it prints. Prints a note and returns `None` where no toolchain can
/// build.
pub fn build_c(variables: &[(&str, &str)], options: &[&str]) -> Option<PathBuf> {
    let script = source("../../scripts/build-c");
    let mut command = Command::new(script);
    for name in ["QUELL_FEATURES", "QUELL_BATCH_SPACES", "QUELL_RANGES", "QUELL_UNCHECKED"] {
        command.env_remove(name);
    }
    command.args(options);
    command.envs(variables.iter().copied());
    // Variables for the host's build don't apply to this build.
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_INCREMENTAL", "QUELL_BUILD_STD"] {
        command.env_remove(name);
    }
    let output = command.output().expect("scripts/build-c runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Some(String::from_utf8_lossy(&output.stdout).trim().into()),
        // No toolchain for the target.
        Some(3) => {
            skip(errors.trim());
            None
        }
        _ => panic!("{errors}"),
    }
}

/// Compiles a C program and links it with a library.
pub fn program(directory: &Path, file: &str, library: &Path, flags: &[&str]) -> Option<Command> {
    let mut compiler = compiler("CC", "cc")?;
    let name = Path::new(file).file_stem().expect("a name");
    let program = directory.join(name);
    compiler
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-O1"])
        .args(flags)
        .arg("-I")
        .arg(source("include"))
        .arg("-o")
        .arg(&program)
        .arg(source(file))
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"]);
    let (ok, output) = run(&mut compiler);
    assert!(ok, "{output}");
    Some(Command::new(program))
}
