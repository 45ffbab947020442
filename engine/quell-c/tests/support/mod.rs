//! Shared by the tests: compilers for C, libraries, and programs that end.
#![allow(dead_code)] // Each test uses a part.

use object::read::archive::ArchiveFile;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of a file of this crate.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Prints what can't be tested here, bypassing the test harness.
fn note(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// Prints what can't be tested here. Fails if QUELL_REQUIRE_C is set.
fn skip(what: &str) {
    assert!(std::env::var_os("QUELL_REQUIRE_C").is_none(), "{what}");
    note(what);
}

/// Returns a program, if it's installed.
fn installed(name: &str) -> Option<Command> {
    let output = Command::new(name).arg("--version").output();
    output.is_ok_and(|output| output.status.success()).then(|| Command::new(name))
}

/// Returns the host's compiler that `variable` names, or `default`. Prints a note and returns `None` if there is none.
pub fn compiler(variable: &str, default: &str) -> Option<Command> {
    let name = std::env::var(variable).unwrap_or_else(|_| default.into());
    let compiler = installed(&name);
    if compiler.is_none() {
        skip(&format!("there is no compiler `{name}`: set {variable} to one"));
    }
    compiler
}

/// Returns a tool. Prints a note and returns `None` if it's missing.
pub fn tool(name: &str, how: &str) -> Option<Command> {
    let tool = installed(name);
    if tool.is_none() {
        note(&format!("there is no `{name}`: {how}"));
    }
    tool
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
    command.args(["rustc", "--lib", "--crate-type", "staticlib", "--message-format", "json"]);
    // Cargo's progress bypasses the test harness, which would keep the reason for a wait until the test ends.
    let output = command.current_dir(source("")).stderr(Stdio::inherit()).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "the library does not build");
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

/// Returns the name and the content of each object file of a static library.
pub fn objects(archive: &[u8]) -> Vec<(String, object::File<'_>)> {
    let members = ArchiveFile::parse(archive).expect("an archive").members();
    let members = members.map(|member| {
        let member = member.expect("a member");
        let name = String::from_utf8_lossy(member.name()).into_owned();
        let file = object::File::parse(member.data(archive).expect("its bytes"));
        (name, file.expect("an object"))
    });
    members.collect()
}
