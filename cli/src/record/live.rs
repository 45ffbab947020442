//! Records programs on this host: the options, the output file, and the fallback without privileges.

use std::ffi::OsString;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use quell_model::machines;
use quell_record::events;
use quell_record::perf::file::Recording;
use quell_record::perf::live::{Options, RecordError, Recorder, Scope, SumMode, Summary};
use quell_record::perf::{ReadTime, Statistics, counters};
use rustix::fs::FlockOperation;

use quell_model::output::{note, object, paragraph, say};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;

/// The processes to record, the duration, and the output file.
#[derive(Debug, Args)]
#[group(id = "live", multiple = true)]
pub struct LiveArgs {
    /// Record this process and its descendants; may be repeated
    #[arg(short, long = "pid", value_name = "PID", conflicts_with_all = ["all", "cgroup", "command"])]
    pids: Vec<u32>,
    /// Record all processes
    #[arg(short, long, conflicts_with_all = ["cgroup", "command"])]
    all: bool,
    /// Record the processes of this control group (a directory in /sys/fs/cgroup: a container, a service)
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "command")]
    cgroup: Option<PathBuf>,
    /// Record for this long [default: until the recorded processes end, or Ctrl-C; with a COMMAND, until that ends]
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,
    /// Keep the recording in this file; `--import` reads it again
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    /// Limit the cost of recording to this share of CPU time, of the machine and of the recorded programs, in percent
    /// [default: 5 with a COMMAND, else 1]. If recording would cost more, only parts of the time are recorded and
    /// scaled up
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = percent)]
    overhead: Option<f64>,
    /// Start this command, and record it and its children
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub enum Outcome {
    /// A recording, its title, and the command's exit code if the command failed.
    Recorded(Box<Recording>, String, Option<ExitCode>),
    /// Only the kernel's own counters, which have been printed: the privileges for more were missing.
    Counted,
    /// Nothing: a signal arrived before recording began.
    Interrupted,
}

/// The file to which a recording is written.
struct Output {
    file: File,
    /// The path that opens the file again.
    path: PathBuf,
    /// The file's name in messages.
    name: String,
    /// Whether this command created the file.
    made: bool,
}

/// The time between two readings of the kernel's counters without privileges, by default.
const COUNTED: Duration = Duration::from_secs(5);

impl LiveArgs {
    /// Returns whether there is anything to record.
    pub fn any(&self) -> bool {
        !self.pids.is_empty() || self.all || self.cgroup.is_some() || !self.command.is_empty()
    }

    /// Records the chosen processes. Without privileges, prints the kernel's own counters as a table or as JSON
    /// instead.
    pub fn record(&self, json: bool, folded: bool) -> anyhow::Result<Outcome> {
        let over = end_requested()?;
        // We open the file first, because a recording that can't be kept is useless.
        let Output { file, path, name, made } = self.file()?;
        let options = Options {
            wanted: events::recorded(),
            overhead: self.overhead() / 100.0,
            sums: SumMode::Beside,
            outlives: self.seconds.is_some(),
        };
        let mut scope = self.scope();
        if let Scope::Command(command) = &mut scope
            && (json || folded)
        {
            // We need standard output for our own results.
            command.stdout(std::io::stderr().as_fd().try_clone_to_owned()?);
        }
        let opened = Recorder::open(options, scope);
        let ends = over.load(Ordering::Relaxed);
        if (opened.is_err() || ends) && made {
            let _ = std::fs::remove_file(&path);
        }
        let recorder = match opened {
            Ok(recorder) => recorder,
            Err(RecordError::Absent(what)) => return Err(usage(what)),
            Err(refused @ (RecordError::Missing(_) | RecordError::Event { .. })) => {
                note!("cannot record: {refused}");
                let (times, seconds) = self.counted(&over)?;
                if json {
                    let counted: serde_json::Map<_, _> =
                        times.into_iter().map(|(name, times)| (name, times.into())).collect();
                    object(serde_json::json!({
                        "refused": refused.to_string(),
                        "seconds": seconds,
                        "counted": counted,
                    }));
                } else {
                    paragraph(format!(
                        "The kernel's own counters over {seconds:.1} s, of all CPUs and processes:"
                    ));
                    say!("{}", table(&times, seconds));
                }
                return Ok(Outcome::Counted);
            }
            Err(error) => return Err(error.into()),
        };
        if ends {
            note!("interrupted before anything was recorded");
            return Ok(Outcome::Interrupted);
        }
        // We empty the file only now, so that an error before this point doesn't lose an earlier recording in it.
        file.set_len(0).with_context(|| name.clone())?;
        let bar = self.bar();
        // A temporary file without a name exists as long as it's open.
        let written = file.try_clone().with_context(|| name.clone())?;
        let summary = recorder.write(written, &mut |progress| {
            bar.set_message(format!("{} events, {} lost", progress.kept, progress.lost));
            over.load(Ordering::Relaxed)
                || self.seconds.is_some_and(|limit| progress.elapsed >= limit)
        });
        bar.finish_and_clear();
        let summary = match summary {
            Ok(summary) => summary,
            Err(refused) => {
                let is_empty = std::fs::metadata(&path).is_ok_and(|about| about.len() == 0);
                let nothing_ran = matches!(refused, RecordError::Command { .. });
                if made && (is_empty || nothing_ran) {
                    let _ = std::fs::remove_file(&path);
                } else {
                    self.broken_off(&refused, &name);
                }
                return Err(refused).context(name);
            }
        };
        let kept = self.output.is_some().then_some(&name);
        told(&summary, kept, !self.command.is_empty());
        let recording = Recording::open(&path)?;
        let failed = summary.exit.filter(|exit| !exit.success()).map(code);
        Ok(Outcome::Recorded(Box::new(recording), self.title(), failed))
    }

    /// Prints where to find the beginning of a recording that broke off.
    fn broken_off(&self, why: &RecordError, name: &str) {
        if let RecordError::Command { .. } = why {
            return;
        }
        if !self.command.is_empty() {
            note!("recording has stopped; the command still runs");
        }
        match self.output {
            Some(_) => note!(
                "the recording until then is in {name}: `quell record --import {name}` shows it"
            ),
            None => note!(
                "without --output, the recording is kept in {}; set TMPDIR to use another directory",
                std::env::temp_dir().display()
            ),
        }
    }

    /// Returns the limit of the cost of recording, in percent. We allow more for a command that runs only to be
    /// recorded than for programs that serve others.
    fn overhead(&self) -> f64 {
        let default = if self.command.is_empty() { 1.0 } else { 5.0 };
        self.overhead.unwrap_or(default)
    }

    fn scope(&self) -> Scope {
        match (self.command.split_first(), &self.cgroup) {
            (Some((program, arguments)), _) => {
                let mut command = Command::new(program);
                command.args(arguments);
                Scope::Command(command)
            }
            (None, Some(group)) => Scope::Cgroup(group.clone()),
            (None, None) if self.all => Scope::Everything,
            (None, None) => Scope::Processes(self.pids.clone()),
        }
    }

    fn title(&self) -> String {
        match (self.command.first(), &self.cgroup) {
            (Some(program), _) => program.to_string_lossy().into_owned(),
            (None, Some(group)) => group.display().to_string(),
            (None, None) if self.all => "this host".to_owned(),
            (None, None) => {
                let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
                format!("process {}", pids.join(", "))
            }
        }
    }

    /// Opens the named file without emptying it, or creates a temporary file that disappears when it's closed.
    fn file(&self) -> anyhow::Result<Output> {
        if let Some(path) = &self.output {
            let name = path.display().to_string();
            let made = !path.exists();
            let why = if name == "-" {
                Some("standard output cannot be read again; name a file")
            } else if !made && !path.is_file() {
                let why = machines::waits_for_others(path);
                why.or(Some("no regular file, so the recording could not be read again"))
            } else {
                None
            };
            if let Some(why) = why {
                return Err(usage(format_args!("--output {name}: {why}")));
            }
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .map_err(|error| usage(format_args!("--output {name}: {error}")))?;
            // Two recordings would overwrite each other's events. The lock ends with the process.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(usage(format_args!(
                    "--output {name}: another recording is being written to it; name another file"
                )));
            }
            let path = path.clone();
            return Ok(Output { file, path, name, made });
        }
        let file = tempfile::tempfile().with_context(|| {
            format!(
                "cannot create a temporary file for the recording in {} (set TMPDIR, or name a file with --output)",
                std::env::temp_dir().display()
            )
        })?;
        let path =
            PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        Ok(Output { file, path, name: "the recording".to_owned(), made: false })
    }

    /// Returns a progress bar, hidden if standard error isn't a terminal or is shared with the command.
    fn bar(&self) -> ProgressBar {
        if !self.command.is_empty() || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("recording {elapsed}: {msg}; Ctrl-C stops")
        {
            bar.set_style(style);
        }
        bar
    }

    /// Returns the kernel's own counts of the whole machine and the time in seconds. This needs no privileges.
    fn counted(&self, over: &AtomicBool) -> anyhow::Result<(Vec<(String, u64)>, f64)> {
        let begin = Instant::now();
        let before = counters::read(ReadTime::Before, 0)?;
        let mut child = match self.scope() {
            Scope::Command(mut command) => {
                Some(command.spawn().context("cannot start the command")?)
            }
            Scope::Everything | Scope::Processes(_) | Scope::Cgroup(_) => None,
        };
        let limit = self.seconds.or(child.is_none().then_some(COUNTED));
        while !over.load(Ordering::Relaxed) && limit.is_none_or(|limit| begin.elapsed() < limit) {
            if let Some(child) = &mut child
                && child.try_wait()?.is_some()
            {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let after = counters::read(ReadTime::After, 0)?;
        Ok((counts(&before, &after), begin.elapsed().as_secs_f64()))
    }
}

/// Prints a summary of a recording on standard error, before its results.
fn told(summary: &Summary, kept: Option<&String>, command: bool) {
    let place = kept.map_or_else(String::new, |name| format!(" into {name}"));
    note!(
        "recorded {} events in {:.1} s{place}; {} lost; overhead {}, plus {:.0} ms of CPU time before and after",
        summary.kept,
        summary.elapsed.as_secs_f64(),
        summary.lost,
        summary.overhead_text(),
        summary.around.as_secs_f64() * 1e3
    );
    match summary.exit {
        Some(exit) if !exit.success() => note!("the command ended with {exit}"),
        Some(_) if summary.outlived => {
            note!("the command ended, but its children still run; --seconds N records them too");
        }
        None if command => note!("the command still runs"),
        _ => {}
    }
}

/// Returns the exit code that a shell reports for this exit status.
fn code(exit: ExitStatus) -> ExitCode {
    let signal = || exit.signal().map(|signal| 128 + signal);
    let code = exit.code().or_else(signal).and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Returns a table of counts during this number of seconds.
pub fn table(times: &[(String, u64)], seconds: f64) -> Table {
    let mut table = Table::new([words("counter"), number("count"), number("per second")]);
    for (name, times) in times {
        let each = format!("{:.0}", *times as f64 / seconds);
        table.row([name.clone(), times.to_string(), each]);
    }
    table
}

/// Returns how often events related to shootdowns occurred between two readings of the kernel's counters.
pub fn counts(before: &Statistics, after: &Statistics) -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    let mut row = |name: String, before: Option<u64>, after: Option<u64>| {
        if let (Some(before), Some(after)) = (before, after) {
            rows.push((name, after.saturating_sub(before)));
        }
    };
    for interrupt in &after.interrupts {
        // These are the names on x86 and Arm. Interrupts of devices have numbers instead.
        if interrupt.name.parse::<u32>().is_err()
            && ["TLB", "CAL", "RES", "IPI0", "IPI1"].contains(&&*interrupt.name)
        {
            let name = &interrupt.name;
            row(
                format!("{name}: {}", interrupt.description),
                before.interrupt(name),
                after.interrupt(name),
            );
        }
    }
    for (name, _) in &after.vmstat {
        let matters = name.starts_with("nr_tlb_")
            || name.starts_with("numa_pte")
            || name == "pgmigrate_success";
        if matters || ["pgfault", "pgsteal_kswapd", "pgsteal_direct"].contains(&name.as_str()) {
            row(name.clone(), before.vm(name), after.vm(name));
        }
    }
    rows
}

/// Returns a flag that Ctrl-C and other signals set. The process continues until it checks the flag.
pub fn end_requested() -> std::io::Result<Arc<AtomicBool>> {
    let told = Arc::new(AtomicBool::new(false));
    for signal in signal_hook::consts::TERM_SIGNALS {
        signal_hook::flag::register(*signal, told.clone())?;
    }
    // Closing the terminal ends a recording like Ctrl-C, unless the recording was started to outlive the terminal.
    if !is_ignored(signal_hook::consts::SIGHUP) {
        signal_hook::flag::register(signal_hook::consts::SIGHUP, told.clone())?;
    }
    Ok(told)
}

/// Returns whether this process was started with the signal ignored, for example by `nohup`.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Parses a number of seconds, with or without a fraction.
pub fn seconds(word: &str) -> Result<Duration, String> {
    let wrong = "expected a number of seconds above 0, for example 2.5".to_owned();
    let seconds: f64 = word.parse().map_err(|_| wrong.clone())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or(wrong)
}

/// Parses a share in percent. With 100 there is no limit.
pub fn percent(word: &str) -> Result<f64, String> {
    let percent: f64 = word.parse().unwrap_or(f64::NAN);
    match percent {
        100.0 => Ok(f64::INFINITY),
        0.0..100.0 => Ok(percent),
        _ => Err("expected a percentage from 0 to 100; 100 records everything".to_owned()),
    }
}
