//! `quell run`: runs one workload on one machine with one policy.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::Args;
use quell::{Counter, Stats};
use quell_mutants::{Mutant, list};
use quell_workloads::files::hint;

use crate::jobs::Job;
use crate::lines::{LineGroup, LineProfile};
use crate::mutants;
use crate::numbers::{digits, spread};
use crate::options::{MachineArgs, WorkloadArgs, policy_or_file};
use crate::output::{self, Destination, note, paragraph, say, several};
use crate::policies::{self, PolicyChoice};
use crate::run::{CallLatency, Report, outcomes, values};
use crate::table::{Table, number, words};
use crate::trial::{Outcome, TrialError};
use crate::usage::usage;

/// The largest number of events in a trace.
const TRACE_EVENTS: usize = 2_000_000;

/// The arguments of `quell run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    #[command(flatten)]
    machine: MachineArgs,
    /// Switch on these mechanisms: baseline, all, S0+S4, all-S3, all,tags=64 … (`quell list policies`), or use the
    /// protocol of a policy file, by name or path
    #[arg(long, default_value = "all", value_parser = policy_or_file(), hide_possible_values = true)]
    policy: PolicyChoice,
    /// Use this many CPUs, 1 to 1024 [default: the workload's own number]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    cpus: Option<u16>,
    /// Set the seed of all random choices: the workload's, and the order of CPUs at the same virtual time. The same
    /// seed gives the same run on every host
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run with this many seeds, from --seed on, and report the spread. Counts are those of the first seed
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Write a trace of all CPUs to this file, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Show which cache lines moved between cores, how often and by which code, like `perf c2c`
    #[arg(long)]
    lines: bool,
    /// Leave out a guard, to see its cost and the breaches: the name of a mutant from `quell explore --mutants`; may be
    /// repeated. The contract may break, and the run may never end
    #[arg(long, value_name = "GUARD", value_parser = guard)]
    without: Vec<&'static Mutant>,
}

/// Returns the mutant with this name.
///
/// # Errors
/// If there is no such mutant.
pub fn guard(name: &str) -> Result<&'static Mutant, String> {
    list::named(name).ok_or_else(|| {
        let near = hint(name, list::all().iter().map(|mutant| mutant.name.as_str()));
        format!("no mutant of that name{near}; `quell explore --mutants` lists them")
    })
}

/// We print the spread over seeds if it exceeds this share of the median.
const SPREAD: f64 = 0.01;

/// Returns the error for a failed trial: a usage error if the arguments were wrong.
pub fn refusal(error: TrialError) -> anyhow::Error {
    if error.is_usage() { usage(error) } else { error.into() }
}

/// Runs the workload and prints the results.
///
/// # Errors
/// If something chosen doesn't exist, the run doesn't end, or the trace can't be written.
pub fn run(args: RunArgs) -> Result<ExitCode> {
    let workload = args.workload.resolve()?;
    let machine = args.machine.resolve()?;
    if !args.without.is_empty()
        && let Some(code) = mutants::in_copy("quell-model")?
    {
        return Ok(code);
    }
    let policy = args.policy;
    let cpus = args.cpus.map_or(workload.cpus(), usize::from);
    // Checked before the run, so that a path that can't be written costs no time.
    let trace = args.trace.as_deref();
    let trace = trace.map(|path| Destination::open("--trace", Some(path), "")).transpose()?;
    // We leak the names: jobs need them as long as the process runs.
    let without: &'static [&'static str] =
        (args.without.iter().map(|guard| guard.name.as_str()).collect::<Vec<_>>()).leak();
    let job = Job {
        seed: args.seed,
        without,
        trace: if trace.is_some() { TRACE_EVENTS } else { 0 },
        lines: args.lines,
        ..Job::new(Arc::new(machine), workload, policy, cpus)
    };
    let outcomes = outcomes(&job, args.seeds, &AtomicBool::new(false), || ());
    let mut outcomes = outcomes.context("no seed was run")?;
    let values = values(&outcomes);
    let others = outcomes.split_off(1);
    let outcome = outcomes.swap_remove(0).map_err(refusal)?;
    for failure in others.iter().filter_map(|other| other.as_ref().err()) {
        note!("with another seed: {failure}");
    }
    if let Some(place) = trace {
        let name = format!("{} on {}, {}", workload.name(), job.machine.name(), policy);
        place.write_with(|to| outcome.run.trace.write_chrome(&name, to))?;
        note!("trace: {} events in {}", outcome.run.trace.events().len(), place.shown());
        if outcome.run.trace.dropped() > 0 {
            note!("trace: {} later events did not fit", outcome.run.trace.dropped());
        }
    }
    if args.json {
        output::document(&Report::of(&job, &outcome, &values))?;
    } else {
        print(&job, &args.without, &outcome, &values);
        if let Some(profile) = LineProfile::of(workload.operation(), &outcome) {
            print_lines(&profile);
        }
    }
    let figure = &outcome.measure;
    if !figure.value.is_finite() {
        note!(
            "{}: the figure `{}` is {}, because its formula divides by zero in this run",
            workload.name(),
            figure.metric,
            figure.value
        );
    }
    let others: u64 = others.iter().flatten().map(|other| other.run.violation_count).sum();
    let holds = outcome.run.violation_count + others == 0;
    Ok(if holds && figure.value.is_finite() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(job: &Job, without: &[&'static Mutant], outcome: &Outcome, values: &[f64]) {
    paragraph(format_args!(
        "{} on {}, {}, policy {}, seed {}",
        job.workload.name(),
        job.machine.title(),
        several(job.cpus, "CPU"),
        policies::name_of(&job.machine, job.policy),
        job.seed
    ));
    for guard in without {
        paragraph(format_args!("  left out: {}: {}", guard.name, guard.mistake.trim()));
    }
    say!("  {}: {:.4}", outcome.measure.metric, outcome.measure.value);
    if let Some([least, median, most]) = spread(values)
        && most - least > SPREAD * median.abs()
    {
        say!("  with {} seeds: {least:.4} to {most:.4}, median {median:.4}", values.len());
    }
    say!(
        "  virtual time: {:.6} s, {:.6} s of it measured",
        outcome.run.elapsed as f64 / 1e12,
        outcome.window_nanoseconds / 1e9
    );
    say!(
        "  contract: {}",
        match outcome.run.violation_count {
            0 => "kept, every access checked".to_owned(),
            count => format!("BROKEN {count} times"),
        }
    );
    if outcome.run.expected_violations > 0 {
        say!(
            "  given up by the policy: {} accesses break such clauses",
            outcome.run.expected_violations
        );
    }
    for breach in &outcome.run.violations {
        paragraph(format_args!("    {breach}"));
    }
    say!(
        "  host: {:.1} million accesses/s, {:.2} s",
        outcome.run.accesses_per_second() / 1e6,
        outcome.run.host_seconds
    );
    if !outcome.run.latencies.is_empty() {
        say!("\n{}", latency_table(outcome));
    }
    say!("\n{}", count_table(outcome));
}

/// The functions of a group that the table shows; `--json` has all of them.
const HANDS: usize = 4;

/// Prints the groups of lines with at least 1 % of the transfers.
fn print_lines(profile: &LineProfile) {
    let mut rows = Table::new([
        number("lines"),
        number("transfers"),
        number("per operation"),
        number("ns each"),
        words("moved by"),
        number("transfers"),
        number("CPUs"),
    ]);
    let shown = |group: &&LineGroup| group.transfers * 100 >= profile.transfers;
    for group in profile.groups.iter().filter(shown) {
        for (place, (hand, transfers, cpus)) in group.hands().into_iter().take(HANDS).enumerate() {
            let first = |cell: String| if place == 0 { cell } else { String::new() };
            rows.row([
                first(group.lines.to_string()),
                first(group.transfers.to_string()),
                first(group.per_operation.map_or_else(String::new, digits)),
                first(digits(group.ns_each)),
                hand,
                transfers.to_string(),
                cpus.to_string(),
            ]);
        }
    }
    paragraph(format_args!(
        "\n{} lines moved between cores while measured; an operation is a {}",
        profile.transfers, profile.operation
    ));
    say!("\n{rows}");
}

/// Returns a table of the times of calls in the measured window.
fn latency_table(outcome: &Outcome) -> Table {
    Table::of(&CallLatency::all(outcome))
        .column(words("call, while measured"), |call| call.call.as_str())
        .column(number("count"), |call| call.count.to_string())
        .column(number("median, ns"), |call| digits(call.median_ns))
        .column(number("99 %, ns"), |call| digits(call.p99_ns))
        .column(number("maximum, ns"), |call| digits(call.worst_ns))
        .done()
}

/// Returns a table of the counts that aren't 0.
pub fn count_table(outcome: &Outcome) -> Table {
    table_of(engine_rows(&outcome.engine).chain(outcome.machine.rows()))
}

/// Returns the engine's counts, each with its name and meaning.
pub fn engine_rows(engine: &Stats) -> impl Iterator<Item = (&'static str, &'static str, u64)> + '_ {
    let row = |(counter, count): (Counter, u64)| (counter.label(), counter.meaning(), count);
    engine.iter().map(row)
}

/// Returns a table of these names, meanings and counts, without counts of 0.
pub fn table_of<'a>(counts: impl Iterator<Item = (&'a str, &'a str, u64)>) -> Table {
    Table::of(&counts.filter(|(.., count)| *count != 0).collect::<Vec<_>>())
        .column(words("counter, while measured"), |(name, ..)| *name)
        .column(number("count"), |(.., count)| count.to_string())
        .column(words("meaning"), |(_, meaning, _)| meaning.trim())
        .done()
}
