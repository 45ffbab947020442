//! Runs a program that may never end, with a limit.
//!
//! We limit the CPU time if the host can do so (Linux), so that a busy host makes no difference. Elsewhere, and for
//! programs that sleep for ever, the limit is ten times as much elapsed time.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The end of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It succeeded.
    Passed,
    /// It ended with another exit code or by a signal; contains its output.
    Failed(String),
    /// It reached its limit.
    Never,
}

/// The limit of a program's memory in bytes.
#[cfg(target_os = "linux")]
const MEMORY: u64 = 16 << 30;

#[cfg(target_os = "linux")]
fn limit(child: &Child, seconds: u64) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_child(child);
    let most = |most| Rlimit { current: Some(most), maximum: Some(most) };
    // This fails only if the program has ended, and then it needs no limit.
    let _ = prlimit(Some(pid), Resource::Cpu, most(seconds));
    let _ = prlimit(Some(pid), Resource::As, most(MEMORY));
}

#[cfg(not(target_os = "linux"))]
fn limit(_: &Child, _: u64) {}

#[cfg(unix)]
fn ran_out(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // At the soft limit Linux sends SIGXCPU, which is 24; at the hard limit it sends SIGKILL, which is 9.
    matches!(status.signal(), Some(24 | 9))
}

#[cfg(not(unix))]
fn ran_out(_: std::process::ExitStatus) -> bool {
    false
}

/// Runs a program with this input, for at most `seconds` of CPU time.
///
/// # Errors
/// If the program doesn't start.
pub fn run(command: &mut Command, input: &str, seconds: u64) -> io::Result<(End, String)> {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    limit(&child, seconds);
    if let Some(mut stdin) = child.stdin.take() {
        // A program that has already ended reads nothing.
        let _ = stdin.write_all(input.as_bytes());
    }
    let mut output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(output) = &mut output {
            // We use the output that was written before an error.
            let _ = output.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let last = Instant::now() + Duration::from_secs(10 * seconds);
    let mut pause = Duration::from_micros(200);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if Instant::now() > last {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let text = reader.join().unwrap_or_default();
    let end = match status {
        Some(status) if status.success() => End::Passed,
        Some(status) if !ran_out(status) => End::Failed(text.clone()),
        _ => End::Never,
    };
    Ok((end, text))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, input: &str) -> (End, String) {
        run(Command::new("sh").args(["-c", script]), input, 1).expect("a shell")
    }

    #[test]
    fn programs_that_end_are_told_from_those_that_do_not() {
        assert_eq!(shell("cat", "said\n"), (End::Passed, "said\n".to_string()));
        assert_eq!(shell("echo wrong; exit 3", "").0, End::Failed("wrong\n".to_string()));
        assert_eq!(shell("while :; do :; done", "").0, End::Never);
    }
}
