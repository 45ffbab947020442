//! Runs the command once, in a process with limits.
//!
//! The shell that starts the process limits its memory, CPU time and file sizes. We read output only up to a size. A
//! process that uses and wants no CPU time for a while waits for something that never happens. No limit is one of
//! wall-clock time, so a busy host makes no difference.

use crate::inputs::files::Place;
use crate::inputs::lines::Line;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// The limits of a run.
#[derive(Clone, Copy)]
pub struct Limits {
    /// The limit of CPU time in seconds.
    seconds: u32,
    /// A process is hung if it slept through this many checks in a row, which are a second apart.
    asleep: u32,
}

/// Limits that suffice for most runs; others are cut short.
pub const BRIEF: Limits = Limits { seconds: 1, asleep: 20 };
/// Limits so long that a run must have printed its progress.
pub const LONG: Limits = Limits { seconds: 40, ..BRIEF };
/// Limits for the test of the verdict.
pub const ASLEEP_SOON: Limits = Limits { asleep: 2, ..BRIEF };

/// The limit of address space, in KiB. A run that needs more must report that.
const MEMORY: u64 = 8 << 20;
/// The limit of a file's size, in blocks of 512 bytes.
const FILE: u64 = 1 << 18;
/// The limit of output that we read, in bytes.
const OUTPUT: u64 = 8 << 20;

/// How a run ended.
pub struct RunEnd {
    status: ExitStatus,
    /// The reason why we ended a process that hung.
    pub hung: Option<String>,
    pub stdout: String,
    pub stderr: String,
}

/// The number of the signal for a process that has used up its CPU time.
const SIGXCPU: i32 = 24;
const SIGKILL: i32 = 9;

impl RunEnd {
    /// Returns the exit code, if the process ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns the signal that ended the process, except for the limit of CPU time.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal().filter(|_| !self.was_cut_short())
    }

    /// Returns whether the limit of CPU time ended the process.
    pub fn was_cut_short(&self) -> bool {
        self.hung.is_none() && matches!(self.status.signal(), Some(SIGXCPU | SIGKILL))
    }

    pub fn shown(&self) -> String {
        match (self.was_cut_short(), self.code()) {
            (true, _) => "cut short".into(),
            (_, Some(code)) => format!("exit {code}"),
            _ => "signal".into(),
        }
    }

    /// Returns the first lines of the output and of the errors.
    pub fn head(&self) -> String {
        let head = |name: &str, text: &str| {
            let lines = text.lines().take(6);
            let cut = |line: &str| line.chars().take(300).collect::<String>();
            lines.map(|line| format!("  {name} {}\n", cut(line))).collect::<String>()
        };
        head("out", &self.stdout) + &head("err", &self.stderr)
    }
}

/// Runs the command.
pub fn run(line: &Line, place: &Place, limits: Limits) -> RunEnd {
    let mut command = limited(limits, "exec \"$0\" \"$@\"");
    command.arg(env!("CARGO_BIN_EXE_quell")).args(line.arguments());
    follow(command, place, limits)
}

/// Runs a script in place of the command.
pub fn shell(script: &str, place: &Place, limits: Limits) -> RunEnd {
    follow(limited(limits, script), place, limits)
}

fn limited(limits: Limits, script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(format!(
        "ulimit -v {MEMORY}; ulimit -f {FILE}; ulimit -c 0; ulimit -t {}; {script}",
        limits.seconds
    ));
    command
}

fn follow(mut command: Command, place: &Place, limits: Limits) -> RunEnd {
    command
        .env_clear()
        .env("PATH", place.programs())
        .env("HOME", place.path())
        .env("TMPDIR", place.path())
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    let (sender, ends) = mpsc::channel();
    let read = |mut pipe: Box<dyn Read + Send>| {
        let sender = sender.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = pipe.by_ref().take(OUTPUT).read_to_end(&mut bytes);
            drop(pipe);
            let _ = sender.send(());
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let stdout = read(Box::new(child.stdout.take().expect("a pipe")));
    let stderr = read(Box::new(child.stderr.take().expect("a pipe")));
    let (mut left, mut asleep, mut before, mut hung) = (2, 0, None, None);
    while left > 0 {
        match ends.recv_timeout(Duration::from_secs(1)) {
            Ok(()) => left -= 1,
            Err(_) => {
                let now = wanted(child.id());
                asleep = if now == before { asleep + 1 } else { 0 };
                before = now;
                if asleep >= limits.asleep && hung.is_none() {
                    hung = Some(format!("asleep at {asleep} looks in a row"));
                    let _ = child.kill();
                }
            }
        }
    }
    RunEnd {
        status: child.wait().expect("a child"),
        hung,
        stdout: stdout.join().expect("no panic"),
        stderr: stderr.join().expect("no panic"),
    }
}

/// Returns how long a process ran or waited for a CPU, in hundredths of a second, or `None` if the host doesn't count
/// it.
fn wanted(process: u32) -> Option<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let file = thread.ok()?.path().join("schedstat");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let numbers = text.split_whitespace().take(2);
        sum += numbers.filter_map(|word| word.parse::<u64>().ok()).sum::<u64>();
    }
    Some(sum / 10_000_000)
}
