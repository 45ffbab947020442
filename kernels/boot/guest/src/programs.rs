//! Runs third-party programs: each in its own process group, with limits of time and perhaps memory.
//!
//! We write a program's output to a file, and send the relevant part to the host. Processes that it leaves behind are
//! killed with the group; this process, the first one, waits for them.

use crate::protocol::{Event, ExitKind, PROGRAMS, Program};
use crate::setup;
use anyhow::Context;
use std::fs::{self, File, read_to_string, write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The folder in which a program runs. It contains a folder `tmp`.
const HOME: &str = "/";
/// The file of its output.
const OUTPUT: &str = "/tmp/.output";
/// The control group of the program's processes.
const GROUP: &str = "/sys/fs/cgroup/program";
/// The time between two checks of a running program.
const LOOK: Duration = Duration::from_millis(20);
/// The time in which all processes of a killed group must end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most failed parts to report.
const PARTS: usize = 400;
/// The number of last lines to report.
const LAST: usize = 12;

/// Runs every program of the list, one after the other. There may be no list.
pub fn perform(mut say: impl FnMut(&Event)) -> anyhow::Result<()> {
    let list = format!("/{PROGRAMS}");
    if !Path::new(&list).exists() {
        return Ok(());
    }
    setup::for_programs()?;
    let list = read_to_string(&list).context("reading the programs")?;
    for (number, line) in list.lines().enumerate() {
        let program: Program =
            serde_json::from_str(line).with_context(|| format!("program {number}"))?;
        say(&Event::Starts { program: number, name: program.name.clone() });
        let begin = Instant::now();
        let how = run(&program).unwrap_or_else(|error| ExitKind::Never(format!("{error:#}")));
        let output = fs::read(OUTPUT).unwrap_or_default();
        let output = String::from_utf8_lossy(&output);
        say(&Event::Ended {
            program: number,
            how,
            milliseconds: begin.elapsed().as_millis() as u64,
            passed: parts(&output, "ok ").count() as u64,
            failed: parts(&output, "not ok ").take(PARTS).collect(),
            last: last(&output),
        });
        let _ = fs::remove_file(OUTPUT);
        tidy();
    }
    Ok(())
}

fn run(program: &Program) -> anyhow::Result<ExitKind> {
    for (file, text) in &program.settings {
        write(file, text).with_context(|| format!("writing {text} to {file}"))?;
    }
    fs::create_dir_all(GROUP).context(GROUP)?;
    let limit = program.memory.map_or("max".into(), |bytes| bytes.to_string());
    write(format!("{GROUP}/memory.max"), limit).context("limiting memory")?;
    let output = File::create(OUTPUT).context(OUTPUT)?;
    let (name, arguments) = program.command.split_first().context("no command")?;
    let mut command = Command::new(name);
    command
        .args(arguments)
        .current_dir(HOME)
        .env_clear()
        .env("PATH", "/bin")
        .env("HOME", HOME)
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    // SAFETY: between fork and exec it only opens a file and writes to it, which are async-signal-safe calls.
    unsafe {
        command.pre_exec(write_to_group);
    }
    let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
    let begin = Instant::now();
    let mut ended: Option<ExitStatus> = None;
    while ended.is_none() && begin.elapsed().as_secs() < program.seconds {
        ended = child.try_wait().context("waiting")?;
        if ended.is_none() {
            std::thread::sleep(LOOK);
        }
    }
    write(format!("{GROUP}/cgroup.kill"), "1").context("ending its processes")?;
    if ended.is_none() {
        child.wait().context("waiting")?;
    }
    let begin = Instant::now();
    while read_to_string(format!("{GROUP}/cgroup.procs")).is_ok_and(|left| !left.is_empty()) {
        reap();
        if begin.elapsed() > PATIENCE {
            anyhow::bail!("some of its processes cannot be killed");
        }
        std::thread::sleep(LOOK);
    }
    reap();
    Ok(match ended {
        None => ExitKind::Late,
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitKind::Code(code),
            (None, signal) => ExitKind::Signal(signal.unwrap_or(0)),
        },
    })
}

fn write_to_group() -> std::io::Result<()> {
    let file = rustix::fs::open(
        c"/sys/fs/cgroup/program/cgroup.procs",
        rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::empty(),
    )?;
    rustix::io::write(&file, b"0")?;
    Ok(())
}

/// Waits for ended processes that were left to this one.
fn reap() {
    use rustix::process::{WaitOptions, wait};
    while matches!(wait(WaitOptions::NOHANG), Ok(Some(_))) {}
}

/// Removes files that a program left behind.
fn tidy() {
    for folder in ["/tmp", "/dev/shm", crate::linux::FILES] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // A file that can't be removed doesn't disturb later programs.
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
    }
}

/// Returns the names of parts whose lines of output have this prefix, as in TAP. Programs that run others indent or
/// comment theirs.
fn parts<'o>(output: &'o str, begin: &'o str) -> impl Iterator<Item = String> + 'o {
    output
        .lines()
        .filter_map(move |line| line.trim_start_matches(['#', ' ', '\t']).strip_prefix(begin))
        .map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' '))
        .map(|name| name.chars().take(120).collect())
}

fn last(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LAST)..]
        .iter()
        .map(|line| line.chars().take(200).collect())
        .collect()
}
