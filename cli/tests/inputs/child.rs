//! One run in a process with limits.
//!
//! Memory, processor time and the size of files are limits of the process itself, set by the shell that starts
//! it; output beyond a size is not read. A process that wants no processor time for a while waits for something
//! that does not come. No limit is one of the clock: a host that is busy changes nothing.

use crate::inputs::files::Place;
use crate::inputs::lines::Line;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Limits of a run.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Seconds of processor time.
    seconds: u32,
    /// Looks, a second apart, at which it had slept since the look before.
    asleep: u32,
}

/// Enough for most runs; others are cut short.
pub const BRIEF: Limits = Limits {
    seconds: 1,
    asleep: 20,
};
/// So long that a run must have said how far it is.
pub const LONG: Limits = Limits {
    seconds: 40,
    ..BRIEF
};
/// For the test of the verdict.
pub const ASLEEP_SOON: Limits = Limits { asleep: 2, ..BRIEF };

/// Address space in KiB: a run that needs more is to say so.
const MEMORY: u64 = 8 << 20;
/// Blocks of 512 bytes in a file.
const FILE: u64 = 1 << 18;
/// Output that is read.
const OUTPUT: u64 = 8 << 20;

/// How a run ended.
pub struct Ended {
    status: ExitStatus,
    /// Why it was ended as one that waits for ever.
    pub hung: Option<String>,
    pub stdout: String,
    pub stderr: String,
}

/// Number of the signal for a process that has used its processor time.
const SIGXCPU: i32 = 24;
const SIGKILL: i32 = 9;

impl Ended {
    /// The code, if it ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it, but for the limit of processor time.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal().filter(|_| !self.was_cut_short())
    }

    /// Whether it ran into the limit of processor time.
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

    /// The first lines of what it said.
    pub fn head(&self) -> String {
        let head = |name: &str, text: &str| {
            let lines = text.lines().take(6);
            let cut = |line: &str| line.chars().take(300).collect::<String>();
            lines
                .map(|line| format!("  {name} {}\n", cut(line)))
                .collect::<String>()
        };
        head("out", &self.stdout) + &head("err", &self.stderr)
    }
}

/// Runs the command.
pub fn run(line: &Line, place: &Place, limits: Limits) -> Ended {
    let mut command = limited(limits, "exec \"$0\" \"$@\"");
    command
        .arg(env!("CARGO_BIN_EXE_quell"))
        .args(line.arguments());
    follow(command, place, limits)
}

/// Runs a script in the command's stead.
pub fn shell(script: &str, place: &Place, limits: Limits) -> Ended {
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

fn follow(mut command: Command, place: &Place, limits: Limits) -> Ended {
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
    Ended {
        status: child.wait().expect("a child"),
        hung,
        stdout: stdout.join().expect("no panic"),
        stderr: stderr.join().expect("no panic"),
    }
}

/// Hundredths of a second for which a process ran or waited for a processor; `None` where the host does not tell.
fn wanted(process: u32) -> Option<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).ok()? {
        let file = thread.ok()?.path().join("schedstat");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let numbers = text.split_whitespace().take(2);
        sum += numbers
            .filter_map(|word| word.parse::<u64>().ok())
            .sum::<u64>();
    }
    Some(sum / 10_000_000)
}
