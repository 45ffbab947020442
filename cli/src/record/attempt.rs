//! `quell try`: tests whether a setting helps a command. It runs the command with and without the setting, in turn.

use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use quell_record::figures::{self, Range, count, time};
use quell_record::perf::live::{CommandRun, ProcessTurn, RunUsage, is_running, no_process};
use quell_record::report::Report;
use quell_record::trial::{FEWEST, Finding, PairedRuns, signed};
use serde_json::{Value, json};

use super::live::{end_requested, seconds};
use super::read::{analysed, open};
use quell_model::output::{note, object, paragraph, say};
use quell_model::table::{Table, number, words};
use quell_model::usage::usage;

/// Try a setting: run a command or a server with and without it, alternately
///
/// Runs the command until the difference in CPU time is known or the time is over, and prints each change with 99 %
/// bounds. If it stays unknown whether the setting helps, it prints how much the setting saves at most. The command must
/// end by itself and do the same work each time; its standard output is dropped. `quell try --advice FILE -- COMMAND`
/// takes the setting from a recording of `quell record -o FILE`.
///
/// For a flag or a changed program, use `quell try --with 'ag --nommap WORD' -- ag WORD`.
///
/// For a server that may restart, use `quell try --env NAME=VALUE --load 'sleep 1; ab -n 9999 localhost/' -- SERVER`.
/// For a server that must keep running, use `quell try --pid PID --switch ./set-decay` under a steady load, or with a
/// --load that does the same work each time.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// Set this environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    env: Vec<String>,
    /// Use the first setting that this recording advises
    #[arg(long, value_name = "FILE", conflicts_with = "env")]
    advice: Option<PathBuf>,
    /// Compare with this shell command, which does the same work in another way; a server begins with `exec`
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["env", "advice", "pid"])]
    with: Option<String>,
    /// Try on this running process and its descendants, with --switch
    #[arg(long, value_name = "PID", requires = "switch", conflicts_with_all = ["env", "advice", "command"])]
    pid: Option<u32>,
    /// Switch the setting with this shell command before each turn; its argument (`$1`) is `on` or `off`
    #[arg(long, value_name = "COMMAND", requires = "pid")]
    switch: Option<String>,
    /// Measure a server while this shell command loads it: the process of --pid, or COMMAND, which starts before the
    /// load and gets SIGTERM after it
    #[arg(long, value_name = "COMMAND")]
    load: Option<String>,
    /// Measure a --pid without --load for this long in each turn
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    turn: Duration,
    /// Stop after this many seconds, but not before four pairs of runs
    #[arg(long, value_name = "N", default_value = "120", value_parser = seconds)]
    seconds: Duration,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The command
    #[arg(last = true, required_unless_present = "pid", value_name = "COMMAND")]
    command: Vec<OsString>,
}

struct Measure {
    /// The key in JSON.
    key: &'static str,
    name: &'static str,
    shown: fn(f64) -> String,
    of: fn(&RunUsage) -> Option<f64>,
}

const fn measure(
    key: &'static str,
    name: &'static str,
    shown: fn(f64) -> String,
    of: fn(&RunUsage) -> Option<f64>,
) -> Measure {
    Measure { key, name, shown, of }
}

/// The place of wall time in [`MEASURES`].
const WALL: usize = 2;

/// The measures of each run. The first one decides.
const MEASURES: [Measure; 6] = [
    measure("cpu_ns", "CPU time", time, |of| Some(of.cpu.as_nanos() as f64)),
    measure("kernel_ns", "of it in the kernel", time, |of| Some(of.kernel.as_nanos() as f64)),
    measure("wall_ns", "wall time", time, |of| Some(of.wall.as_nanos() as f64)),
    measure("interrupts", "shootdown interrupts", whole, |of| Some(of.interrupts? as f64)),
    measure("faults", "page faults", whole, |of| Some(of.faults as f64)),
    measure("peak_bytes", "peak memory", megabytes, |of| Some(of.memory as f64)),
];

fn whole(number: f64) -> String {
    count(number as u64)
}

fn megabytes(bytes: f64) -> String {
    format!("{:.1} MB", bytes / 1e6)
}

pub fn run(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let over = end_requested()?;
    let set = args.set()?;
    let shown = match (args.pid, &args.with) {
        (Some(_), _) => "--switch on".to_owned(),
        (None, Some(with)) => format!("'{with}'"),
        (None, None) => set.join(" "),
    };
    let switch = args.switch.as_deref().map(Switch::new);
    let run = |changed: bool| -> anyhow::Result<RunUsage> {
        match (args.pid, &switch) {
            (Some(pid), Some(switch)) => {
                switch.set(changed)?;
                args.turn(pid, changed, &over)
            }
            _ => args.command(&set, changed, &over),
        }
    };
    let begun = Instant::now();
    // We don't count the first run, because it fills caches and memory for all others.
    run(false)?;
    let mut pairs: [PairedRuns; MEASURES.len()] = std::array::from_fn(|_| PairedRuns::default());
    let mut done = 0;
    let has_time = |done| done < FEWEST || begun.elapsed() < args.seconds;
    while !pairs[0].is_known() && has_time(done) && !over.load(Ordering::Relaxed) {
        let first_changed = done % 2 == 1;
        let (one, other) = (run(first_changed)?, run(!first_changed)?);
        if over.load(Ordering::Relaxed) {
            break;
        }
        let (before, after) = if first_changed { (other, one) } else { (one, other) };
        for (pairs, measure) in pairs.iter_mut().zip(&MEASURES) {
            // Two commands that need less than this one can't be told apart.
            if measure.key == "peak_bytes" && !before.shows_memory && !after.shows_memory {
                continue;
            }
            let value = |of: &RunUsage| args.measured(measure, of);
            if let Some((before, after)) = value(&before).zip(value(&after)) {
                pairs.add(before, after);
            }
        }
        done += 1;
    }
    // Leaves the server as it was before we print anything.
    drop(switch);
    if args.json {
        let measures = pairs.iter().zip(&MEASURES);
        let measures =
            measures.map(|(pairs, measure)| (args.named(measure).0.to_owned(), told(pairs)));
        let measures: serde_json::Map<String, Value> = measures.collect();
        let per_second = args.is_per_second();
        object(json!({"set": set, "per_second": per_second, "pairs": done, "measures": measures}));
        return Ok(ExitCode::SUCCESS);
    }
    paragraph(verdict(&pairs[0], &shown, done, begun.elapsed()));
    let wall = &pairs[WALL];
    if !args.is_per_second()
        && let (Finding::More, Some(change)) = (wall.finding(), wall.change())
    {
        paragraph(format_args!("It takes longer: wall time {}", signed(change)));
    }
    if args.is_per_second() {
        paragraph("Figures but memory are per second.");
    }
    say!("{}", table(args, &pairs));
    Ok(ExitCode::SUCCESS)
}

/// A user's command that switches a setting of a running server. Switches it off when dropped.
struct Switch<'a> {
    command: &'a str,
    used: Cell<bool>,
}

impl<'a> Switch<'a> {
    fn new(command: &'a str) -> Self {
        let used = Cell::new(false);
        Switch { command, used }
    }

    fn set(&self, on: bool) -> anyhow::Result<()> {
        self.used.set(true);
        let to = if on { "on" } else { "off" };
        let mut shell = match self.command.contains("$1") {
            true => shell(self.command),
            false => shell(&format!("{} \"$1\"", self.command)),
        };
        // A signal to our group, such as Ctrl-C, must not keep it from switching.
        std::os::unix::process::CommandExt::process_group(&mut shell, 0);
        let status = shell.args(["--switch", to]).stdin(Stdio::null()).status();
        let status = status.context("cannot start sh")?;
        match status.success() {
            true => Ok(()),
            false => bail!("--switch '{}' {to} ended with {status}", self.command),
        }
    }
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        if self.used.get()
            && let Err(error) = self.set(false)
        {
            note!("the setting may still be on: {error}");
        }
    }
}

/// A command that loads a server. It waits in a shell, so that its start costs the server nothing.
struct Load<'a> {
    command: &'a str,
    child: Child,
}

impl<'a> Load<'a> {
    fn prepare(command: &'a str) -> anyhow::Result<Self> {
        let waits = format!("read -r _ || exit\n{command}");
        let child = shell(&waits).stdin(Stdio::piped()).spawn();
        let child = child.context("cannot start sh")?;
        Ok(Load { command, child })
    }

    /// Runs the load to its end. Fails if it fails, unless we were told to end.
    fn run(mut self, over: &AtomicBool) -> anyhow::Result<()> {
        let begin = self.child.stdin.take();
        begin.context("the load has a pipe")?.write_all(b"\n")?;
        let status = self.child.wait()?;
        if !status.success() && !over.load(Ordering::Relaxed) {
            bail!("--load '{}' ended with {status}", self.command);
        }
        Ok(())
    }
}

/// Returns a shell that runs a command of the user's. Its standard output is dropped.
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdout(Stdio::null());
    shell
}

impl TryArgs {
    /// Runs the command once, to its own end or to that of the load.
    fn command(
        &self,
        set: &[String],
        changed: bool,
        over: &AtomicBool,
    ) -> anyhow::Result<RunUsage> {
        let (program, arguments) = self.command.split_first().expect("clap requires one");
        let mut command = match &self.with {
            Some(with) if changed => shell(with),
            _ => {
                let mut command = Command::new(program);
                command.args(arguments);
                let set = set.iter().filter(|_| changed);
                command.envs(set.filter_map(|set| set.split_once('=')));
                command
            }
        };
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let ended = |status: ExitStatus, early: &str| {
            let with = match changed {
                true => format!(" with {}", set.join(" ")),
                false => String::new(),
            };
            anyhow::anyhow!("the command{with} ended with {status}{early}")
        };
        let load = self.load.as_deref().map(Load::prepare).transpose()?;
        let mut running = CommandRun::start(&mut command)
            .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
        let Some(load) = load else {
            let (spent, status) = running.wait()?;
            return match status.success() || over.load(Ordering::Relaxed) {
                true => Ok(spent),
                false => Err(ended(status, "")),
            };
        };
        let loaded = load.run(over);
        let early = running.has_ended();
        running.terminate()?;
        let (spent, status) = running.wait()?;
        if early && !over.load(Ordering::Relaxed) {
            let why = " before its --load did; a server must stay in the foreground";
            return Err(ended(status, why));
        }
        loaded.map(|()| spent)
    }

    /// Measures the running server once: during the load, or for a while.
    fn turn(&self, pid: u32, changed: bool, over: &AtomicBool) -> anyhow::Result<RunUsage> {
        let gone = || {
            let with = if changed { "on" } else { "off" };
            anyhow::anyhow!(
                "process {pid} ended with the setting {with}; --load COMMAND -- SERVER starts a server for each turn"
            )
        };
        let load = self.load.as_deref().map(Load::prepare).transpose()?;
        let wait = |time: Duration| {
            let end = Instant::now() + time;
            while Instant::now() < end && is_running(pid) && !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10).min(time));
            }
        };
        if load.is_none() {
            // Requests under way and memory in caches are still those of the other setting.
            wait(self.turn / 4);
        }
        let turn = ProcessTurn::start(pid).ok_or_else(gone)?;
        let loaded = match load {
            Some(load) => load.run(over),
            None => {
                wait(self.turn);
                Ok(())
            }
        };
        let spent = turn.end().ok_or_else(gone)?;
        loaded.map(|()| spent)
    }

    /// Returns whether turns have no work of their own, so that only rates can be compared.
    fn is_per_second(&self) -> bool {
        self.pid.is_some() && self.load.is_none()
    }

    fn named(&self, measure: &Measure) -> (&'static str, &'static str) {
        match (measure.key, self.pid) {
            // A process that goes on running may have had its peak before.
            ("peak_bytes", Some(_)) => ("memory_bytes", "memory"),
            (key, _) => (key, measure.name),
        }
    }

    /// Returns the value of a measure, or its growth per second.
    fn measured(&self, measure: &Measure, of: &RunUsage) -> Option<f64> {
        let value = (measure.of)(of)?;
        match measure.key {
            "wall_ns" if self.is_per_second() => None,
            // Memory doesn't grow with the length of a turn.
            key if self.is_per_second() && key != "peak_bytes" => {
                Some(value / of.wall.as_secs_f64().max(1e-9))
            }
            _ => Some(value),
        }
    }

    /// Returns the variables to set, or the command that switches.
    fn set(&self) -> anyhow::Result<Vec<String>> {
        if let (Some(pid), Some(switch)) = (self.pid, &self.switch) {
            return match no_process(pid) {
                None => Ok(vec![switch.clone()]),
                Some(why) => Err(usage(format_args!("--pid {pid}: {why}"))),
            };
        }
        if let Some(with) = &self.with {
            return Ok(vec![with.clone()]);
        }
        let Some(path) = &self.advice else {
            return match self.env.is_empty() {
                true => Err(usage(
                    "nothing to try: give a setting with --env NAME=VALUE or --advice FILE, another command with --with COMMAND, or --pid PID --switch COMMAND",
                )),
                false => Ok(self.env.clone()),
            };
        };
        let (mut source, name) = open(path)?;
        let (all, _) = analysed(&mut *source, &mut ())?;
        let advice = Report::new(all, None).advice;
        let tried = advice.iter().find(|advice| advice.knob.is_some());
        let Some((advice, knob)) = tried.and_then(|advice| Some((advice, advice.knob.clone()?)))
        else {
            return Err(usage(format_args!(
                "--advice {name}: no setting of a known allocator or runtime helps; try one with --env, or a changed command with --with"
            )));
        };
        if !advice.is_sure() {
            note!("the recording does not show that this helps");
        }
        note!("{}: {} ({}; {})", knob.allocator, knob.set.join(" "), knob.memory, knob.source);
        Ok(knob.set)
    }
}

/// Returns the result in one sentence.
fn verdict(cpu: &PairedRuns, shown: &str, pairs: usize, took: Duration) -> String {
    let within = format!("{pairs} pairs of runs, {:.0} s", took.as_secs_f64());
    let Some(change) = cpu.change() else {
        return format!("It is unknown whether {shown} helps: fewer than {FEWEST} pairs of runs");
    };
    let saves = |Range { least, .. }: Range| figures::percent(-least);
    let known = match cpu.finding() {
        Finding::Less => format!("{shown} helps"),
        Finding::More => format!("{shown} makes it worse"),
        Finding::Same => format!("{shown} changes nothing"),
        Finding::NotLess => format!("{shown} does not help"),
        Finding::Unknown => {
            format!("It is unknown whether {shown} helps. It saves at most {}", saves(change))
        }
    };
    format!("{known}: CPU time {} ({within})", signed(change))
}

/// Returns a table of each measure before and after.
fn table(args: &TryArgs, pairs: &[PairedRuns]) -> Table {
    let mut table =
        Table::new([words("measure"), number("without"), number("with"), number("difference")]);
    for (pairs, measure) in pairs.iter().zip(&MEASURES) {
        if measure.key == "wall_ns" && args.is_per_second() {
            continue;
        }
        let (before, after) = pairs.medians();
        let difference = match (pairs.finding(), pairs.change()) {
            (_, None) => "–".into(),
            (Finding::Same, _) => "none".into(),
            (Finding::Unknown | Finding::NotLess, Some(change))
                if 1.0 + change.most > 4.0 * (1.0 + change.least) =>
            {
                "unknown".into()
            }
            (_, Some(change)) => signed(change),
        };
        let shown = |value| match pairs.before.is_empty() {
            true => "–".to_owned(),
            false => (measure.shown)(value),
        };
        table.row([args.named(measure).1.to_owned(), shown(before), shown(after), difference]);
    }
    table
}

/// Returns a measure as JSON: the medians, the bounds of the change, and the finding.
fn told(pairs: &PairedRuns) -> Value {
    if pairs.before.is_empty() {
        return Value::Null;
    }
    let (before, after) = pairs.medians();
    json!({"before": before, "after": after, "change": pairs.change(), "finding": pairs.finding()})
}

/// Checks that a setting has the form `NAME=VALUE`.
fn setting(word: &str) -> Result<String, String> {
    match word.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(word.to_owned()),
        _ => Err("expected NAME=VALUE, for example MALLOC_ARENA_MAX=1".to_owned()),
    }
}
