//! Runs the command as a person types it, and checks how it ends.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The text that `perf script` printed of a program without an allocator.
pub const PERF: &str = include_str!("../../profiler/record/tests/recordings/perf.txt");

/// Returns the command with the words of this line.
pub fn quell(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

/// Runs the command with the words of this line.
pub fn run(line: &str) -> Ended {
    ended(&mut quell(line))
}

pub fn ended(command: &mut Command) -> Ended {
    command.output().expect("it starts").into()
}

/// Returns the document that a successful command prints.
#[track_caller]
pub fn document(line: &str) -> Value {
    run(line).code(0).json()
}

/// Runs a script in a shell.
pub fn shell(script: &str) -> Ended {
    ended(Command::new("sh").args(["-c", script]))
}

/// Prints a message that every run must show, past the test harness, which captures `eprintln!`.
pub fn skipped(what: &str, why: &str) {
    let line = format!("SKIPPED: {what}: {}\n", why.trim());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let Output { status, stdout, stderr } = output;
        Ended { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
    }
}

impl Ended {
    /// Fails unless the exit code is this one.
    #[track_caller]
    pub fn code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Fails unless standard output contains this text.
    #[track_caller]
    pub fn stdout(self, text: &str) -> Self {
        assert!(self.stdout.contains(text), "no `{text}`: {self:#?}");
        self
    }

    /// Fails unless standard error contains this text.
    #[track_caller]
    pub fn stderr(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "no `{text}`: {self:#?}");
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|wrong| panic!("{wrong}: {self:#?}"))
    }
}

/// A folder for the files of a test, removed at its end.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.join(name), content).expect("a file");
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.join(name)).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    pub fn has(&self, name: &str) -> bool {
        self.join(name).exists()
    }

    /// Writes a program for the shell.
    #[cfg(unix)]
    pub fn script(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.write(name, text);
        fs::set_permissions(self.join(name), fs::Permissions::from_mode(0o755))
            .expect("its rights");
    }

    #[cfg(unix)]
    pub fn pipe(&self, name: &str) {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        mknodat(CWD, self.join(name), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    }

    /// Returns the command with the words of this line, to be run in the folder.
    pub fn quell(&self, line: &str) -> Command {
        let mut command = quell(line);
        command.current_dir(self.path());
        command
    }

    /// Runs the command in the folder.
    pub fn run(&self, line: &str) -> Ended {
        ended(&mut self.quell(line))
    }

    /// Returns the document that a successful command prints.
    #[track_caller]
    pub fn document(&self, line: &str) -> Value {
        self.run(line).code(0).json()
    }
}
