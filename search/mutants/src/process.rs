//! Runs a program that may never end, with a limit.
//!
//! The limit is processor time if the host can set one (Linux), so that a busy host changes nothing; elsewhere, and
//! for programs that sleep for ever, ten times as much elapsed time.

use std::io::{self, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How a program ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// Well.
    Passed,
    /// With another exit code, or by a signal; its output.
    Failed(String),
    /// Not within its limit.
    Never,
}

/// The most memory of a program.
#[cfg(target_os = "linux")]
const MEMORY: u64 = 16 << 30;

#[cfg(target_os = "linux")]
fn limit(child: &Child, seconds: u64) {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let pid = Pid::from_child(child);
    let most = |most| Rlimit {
        current: Some(most),
        maximum: Some(most),
    };
    // An ended program needs no limit.
    let _ = prlimit(Some(pid), Resource::Cpu, most(seconds));
    let _ = prlimit(Some(pid), Resource::As, most(MEMORY));
}

#[cfg(not(target_os = "linux"))]
fn limit(_: &Child, _: u64) {}

#[cfg(unix)]
fn ran_out(status: std::process::ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt;
    // SIGXCPU is 24 on Linux; a hard limit ends by SIGKILL, which is 9.
    matches!(status.signal(), Some(24 | 9))
}

#[cfg(not(unix))]
fn ran_out(_: std::process::ExitStatus) -> bool {
    false
}

/// Runs a program that reads `input` and may take `seconds` of processor time.
///
/// # Errors
/// If it does not start.
pub fn run(command: &mut Command, input: &str, seconds: u64) -> io::Result<(End, String)> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    limit(&child, seconds);
    if let Some(mut stdin) = child.stdin.take() {
        // One that has ended already reads nothing.
        let _ = stdin.write_all(input.as_bytes());
    }
    let mut output = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(output) = &mut output {
            // Its output before it was ended counts.
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
        assert_eq!(
            shell("echo wrong; exit 3", "").0,
            End::Failed("wrong\n".to_string())
        );
        assert_eq!(shell("while :; do :; done", "").0, End::Never);
    }
}
