//! Runs the command once, in a process with limits, and checks whether the run ended well.
//!
//! A shell limits its memory, CPU time and file sizes. A process that neither ends nor uses up its CPU time for minutes
//! waits for something that never happens.

use crate::inputs::files::Place;
use crate::inputs::lines::Line;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The limits of a run.
#[derive(Clone, Copy)]
pub struct Limits {
    /// The limit of CPU time in seconds.
    seconds: u32,
    /// The time after which a process is hung: long, because a busy host gives it little CPU time.
    hung: Duration,
}

/// Limits that suffice for most runs; others are cut short.
pub const BRIEF: Limits = Limits { seconds: 1, hung: Duration::from_secs(600) };
/// Limits so long that a run must have printed its progress.
pub const LONG: Limits = Limits { seconds: 40, hung: Duration::from_secs(3600) };
/// Limits for the test of the verdict.
pub const HUNG_SOON: Limits = Limits { hung: Duration::from_secs(2), ..BRIEF };

/// The limit of address space, in KiB. A run that needs more must report that.
const MEMORY: u64 = 8 << 20;
/// The limit of a file's size, in blocks of 512 bytes. The output is in files, too.
const FILE: u64 = 1 << 18;

/// The signals for a process that has used up its CPU time.
const OUT_OF_TIME: [i32; 2] = [24, 9];

/// How a run ended.
pub struct RunEnd {
    status: ExitStatus,
    /// Whether we ended it, because it hung.
    pub hung: bool,
    pub stdout: String,
    pub stderr: String,
}

impl RunEnd {
    /// Returns the exit code, if the process ended by itself.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Returns whether the limit of CPU time ended the process.
    pub fn was_cut_short(&self) -> bool {
        !self.hung && self.status.signal().is_some_and(|signal| OUT_OF_TIME.contains(&signal))
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
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| place.path().with_file_name(name));
    let mut child = command
        .env_clear()
        .env("PATH", place.programs())
        .env("HOME", place.path())
        .env("TMPDIR", place.path())
        .current_dir(place.path())
        .stdin(Stdio::null())
        .stdout(File::create(&stdout).expect("a file"))
        .stderr(File::create(&stderr).expect("a file"))
        .spawn()
        .expect("a shell");
    let (began, mut hung) = (Instant::now(), false);
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if began.elapsed() > limits.hung {
            hung = true;
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |path| String::from_utf8_lossy(&fs::read(path).expect("its output")).into_owned();
    RunEnd { status, hung, stdout: text(stdout), stderr: text(stderr) }
}

/// Returns the exit codes that a command line may have.
fn codes(line: &Line) -> &'static [i32] {
    if line.begins_with(&["measure", "host"]) {
        return &[0, 1, 2, 3, 4];
    }
    match line.begins_with(&["explore"]) || line.begins_with(&["merge"]) {
        true => &[0, 1, 2, 3],
        false => &[0, 1, 2],
    }
}

/// Returns the fault in how a run ended, or `None` if it ended well.
pub fn fault(line: &Line, ended: &RunEnd) -> Option<String> {
    if ended.hung {
        return Some("hung".into());
    }
    if ended.stderr.contains("panicked at") {
        return Some("a panic".into());
    }
    // A run that was cut short hasn't shown how it ends.
    if ended.was_cut_short() {
        return None;
    }
    let Some(code) = ended.code() else {
        return Some(format!("ended by {}", ended.status));
    };
    if !codes(line).contains(&code) {
        return Some(format!("exit code {code}"));
    }
    match code {
        2 => refusal(line, ended),
        0 => success(line, ended).or_else(|| documents(line, ended)),
        _ if ended.stdout.is_empty() && ended.stderr.is_empty() => {
            Some("failed without a word".into())
        }
        _ => documents(line, ended),
    }
}

/// Checks an error: one line that names the culprit, or one line for each mistake in a file, and no output before.
fn refusal(line: &Line, ended: &RunEnd) -> Option<String> {
    if !ended.stdout.is_empty() {
        return Some("something was done before it was refused".into());
    }
    let mut lines = ended.stderr.lines();
    let Some(first) = lines.next().and_then(|line| line.strip_prefix("error: ")) else {
        return Some("refused, not in a line that begins with `error: `".into());
    };
    // For a file, each mistake has its own line, which begins with the file's name.
    let file = first.split_once(':').map_or(first, |(file, _)| file);
    if !lines.all(|line| line.starts_with(file)) {
        return Some("refused, not in one line".into());
    }
    // The hint about help names no culprit.
    let said = ended.stderr.split("; `quell").next().unwrap_or_default();
    let named = line.culprits().any(|word| said.contains(&word))
        // An error names a missing argument as the help does, or by its option.
        || said.contains('<')
        || said.contains("--")
        || (said.contains("``") || said.contains("''")) && line.words().any(|word| word.trim_end_matches('=').is_empty())
        // An error quotes a blank, a comma, or the replacement of a control character.
        || line.values().any(|value| {
            let value = value.replace(char::is_control, "\u{fffd}");
            said.contains(&format!("`{value}`")) || said.contains(&format!("'{value}'"))
        });
    (!named).then(|| "refused without the culprit's name".into())
}

/// Returns whether the line requests help or the version.
fn asks(line: &Line) -> bool {
    let asks = ["--help", "-h", "--version", "-V"];
    line.words().any(|word| asks.contains(&word.as_str()))
}

/// Checks a success: there must be output, and every path must have been usable.
fn success(line: &Line, ended: &RunEnd) -> Option<String> {
    if ended.stdout.is_empty() {
        return Some("said nothing, and calls it success".into());
    }
    if asks(line) {
        return None;
    }
    let unusable = line.unusable.first()?;
    Some(format!("success with {unusable}, which nothing can be done with"))
}

/// Checks that the output of `--json` is JSON, unless it's help.
fn documents(line: &Line, ended: &RunEnd) -> Option<String> {
    if asks(line) || !line.words().any(|word| word == "--json") || ended.stdout.is_empty() {
        return None;
    }
    let documents = serde_json::Deserializer::from_str(&ended.stdout).into_iter();
    let wrong = documents.into_iter().find_map(|one: Result<serde_json::Value, _>| one.err())?;
    Some(format!("no JSON: {wrong}"))
}
