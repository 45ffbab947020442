//! `quell try`: tests whether a setting helps a command. It runs the command with and without the setting, in turn.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use quell_record::figures::{count, time};
use quell_record::perf::live::CommandUsage;
use quell_record::report::Report;
use quell_record::trial::{Finding, PairedRuns, signed};
use serde_json::{Value, json};

use super::live::{seconds, told_to_end};
use super::read::{analysed, open};
use crate::output::{note, object, paragraph, say};
use crate::table::{Table, number, words};
use crate::usage::usage;

/// Try a setting: run a command with and without it, alternately
///
/// Runs the command until the difference in CPU time is known or the time is over, and prints each change with 99 %
/// bounds. The command must end by itself and do the same work each time; its standard output is dropped. `quell try
/// --advice FILE -- COMMAND` takes the setting from a recording of `quell record -o FILE`.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// Set this environment variable; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    env: Vec<String>,
    /// Use the first setting that this recording advises
    #[arg(long, value_name = "FILE", conflicts_with = "env")]
    advice: Option<PathBuf>,
    /// Stop after this many seconds, and print the result so far
    #[arg(long, value_name = "N", default_value = "60", value_parser = seconds)]
    seconds: Duration,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// The command
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A measure of a run: its key in JSON, its name, and the functions that format and read it.
struct Measure {
    key: &'static str,
    name: &'static str,
    shown: fn(f64) -> String,
    of: fn(&CommandUsage) -> Option<f64>,
}

/// The measures of each run. The first one decides.
const MEASURES: [Measure; 6] = [
    Measure {
        key: "cpu_ns",
        name: "CPU time",
        shown: time,
        of: |spent| Some(spent.cpu.as_nanos() as f64),
    },
    Measure {
        key: "kernel_ns",
        name: "of it in the kernel",
        shown: time,
        of: |spent| Some(spent.kernel.as_nanos() as f64),
    },
    Measure {
        key: "wall_ns",
        name: "wall time",
        shown: time,
        of: |spent| Some(spent.wall.as_nanos() as f64),
    },
    Measure {
        key: "interrupts",
        name: "shootdown interrupts",
        shown: |number| count(number as u64),
        of: |spent| spent.interrupts.map(|number| number as f64),
    },
    Measure {
        key: "faults",
        name: "page faults",
        shown: |number| count(number as u64),
        of: |spent| Some(spent.faults as f64),
    },
    Measure {
        key: "peak_bytes",
        name: "peak memory",
        shown: |bytes| format!("{:.1} MB", bytes / 1e6),
        of: |spent| Some(spent.peak as f64),
    },
];

/// Tries the setting and prints the result.
///
/// # Errors
/// If the command fails or can't be started, or if the recording can't be read or advises no setting.
pub fn run(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let over = told_to_end()?;
    let set = args.set()?;
    let shown = set.join(" ");
    let run = |changed: bool| -> anyhow::Result<CommandUsage> {
        let (program, arguments) = args.command.split_first().expect("clap requires one");
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if changed {
            let pairs = set.iter().filter_map(|set| set.split_once('='));
            command.envs(pairs);
        }
        let spent = CommandUsage::of(&mut command)
            .with_context(|| format!("cannot start {}", program.to_string_lossy()))?;
        let with = if changed {
            format!(" with {shown}")
        } else {
            String::new()
        };
        if !spent.status.success() && !over.load(Ordering::Relaxed) {
            bail!("the command{with} ended with {}", spent.status);
        }
        Ok(spent)
    };
    let begun = Instant::now();
    // We don't count the first run, because it fills caches and memory for all others.
    run(false)?;
    let mut pairs: [PairedRuns; MEASURES.len()] = std::array::from_fn(|_| PairedRuns::default());
    let mut done = 0;
    while !pairs[0].is_known() && begun.elapsed() < args.seconds {
        let first_changed = done % 2 == 1;
        let (one, other) = (run(first_changed)?, run(!first_changed)?);
        if over.load(Ordering::Relaxed) {
            break;
        }
        let (before, after) = if first_changed {
            (other, one)
        } else {
            (one, other)
        };
        for (pairs, measure) in pairs.iter_mut().zip(&MEASURES) {
            if let Some((before, after)) = (measure.of)(&before).zip((measure.of)(&after)) {
                pairs.add(before, after);
            }
        }
        done += 1;
    }
    if args.json {
        let measures = pairs.iter().zip(&MEASURES);
        let measures = measures.map(|(pairs, measure)| (measure.key.to_owned(), told(pairs)));
        let measures: serde_json::Map<String, Value> = measures.collect();
        object(json!({"set": set, "pairs": done, "measures": measures}));
        return Ok(ExitCode::SUCCESS);
    }
    paragraph(verdict(&pairs[0], &shown, done, begun.elapsed()));
    say!("{}", table(&pairs));
    Ok(ExitCode::SUCCESS)
}

impl TryArgs {
    /// Returns the variables to set.
    fn set(&self) -> anyhow::Result<Vec<String>> {
        let Some(path) = &self.advice else {
            return match self.env.is_empty() {
                true => Err(usage(
                    "nothing to try: give a setting with --env NAME=VALUE or --advice FILE",
                )),
                false => Ok(self.env.clone()),
            };
        };
        let (mut source, name) = open(path)?;
        let (all, _) = analysed(&mut *source, &mut ())?;
        let report = Report::new(all, None);
        let knob = report.advice.into_iter().find_map(|advice| advice.knob);
        let Some(knob) = knob else {
            return Err(usage(format_args!(
                "--advice {name}: no advice there names a setting of a known allocator or runtime; give one with --env"
            )));
        };
        note!(
            "{}: {} ({}; {})",
            knob.allocator,
            knob.set.join(" "),
            knob.memory,
            knob.source
        );
        Ok(knob.set)
    }
}

/// Returns the result in one sentence.
fn verdict(cpu: &PairedRuns, shown: &str, pairs: usize, took: Duration) -> String {
    let change = cpu.change().map(signed);
    let change = change.unwrap_or_else(|| "unknown".to_owned());
    let within = format!("{pairs} pairs of runs, {:.0} s", took.as_secs_f64());
    match cpu.finding() {
        Finding::Less => format!("{shown} helps: CPU time {change} ({within})"),
        Finding::More => format!("{shown} makes it worse: CPU time {change} ({within})"),
        Finding::Same => {
            format!("{shown} changes nothing: CPU time is the same within 1 % ({within})")
        }
        Finding::Unknown => format!(
            "It is unknown whether {shown} helps: CPU time {change} ({within}). Try longer (--seconds) or on a quieter machine"
        ),
    }
}

/// Returns a table of each measure before and after.
fn table(pairs: &[PairedRuns]) -> Table {
    let mut table = Table::new([
        words("measure"),
        number("without"),
        number("with"),
        number("difference"),
    ]);
    for (pairs, measure) in pairs.iter().zip(&MEASURES) {
        let (before, after) = pairs.medians();
        let difference = match (pairs.finding(), pairs.change()) {
            (_, None) => "–".into(),
            (Finding::Same, _) => "none".into(),
            (_, Some(change)) => signed(change),
        };
        let shown = |value| match pairs.before.is_empty() {
            true => "–".to_owned(),
            false => (measure.shown)(value),
        };
        table.row([
            measure.name.to_owned(),
            shown(before),
            shown(after),
            difference,
        ]);
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
        _ => Err("expected NAME=VALUE, for example MALLOC_TRIM_THRESHOLD_=1073741824".to_owned()),
    }
}
