//! `quell reproduce`: every published headline beside what the model predicts.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use quell_experiments::guards;
use quell_experiments::headlines::Headline;
use quell_experiments::jobs::Results;
use quell_experiments::numbers::digits;
use quell_experiments::report;
use quell_experiments::reproduce::{Plan, Row, worse_with_all};
use quell_experiments::trial::Outcome;
use quell_workloads::Workload;
use serde::Serialize;

use crate::table::{align_right, table};
use crate::usage::usage;

/// What `quell reproduce` takes.
#[derive(Debug, Args)]
pub struct ReproduceArgs {
    /// Prints one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Where the HTML report goes
    #[arg(long, value_name = "FILE", default_value = "target/quell-report.html")]
    report: PathBuf,
    /// Runs only the experiments of the table, without the report
    #[arg(long)]
    no_report: bool,
    /// Runs only the table of what the guards cost: the work on fast paths that closes holes
    #[arg(long, conflicts_with = "report")]
    guards: bool,
    /// Only this mechanism, S0 to S4, or this workload
    #[arg(long, value_name = "MECHANISM|WORKLOAD")]
    only: Option<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    rows: &'a [Row],
    guards: &'a [guards::Row],
    violations: u64,
    accesses_per_second: f64,
    seconds: f64,
    report: Option<String>,
}

fn or_dash(value: Option<f64>, show: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), show)
}

fn print_rows(rows: &[Row]) {
    let mut lines = table(&[
        "",
        "experiment",
        "metric",
        "published",
        "",
        "model",
        "",
        "published",
        "predicted",
        "off by",
        "all on",
        "broken",
        "verdict",
    ]);
    for row in rows {
        let percent = |change: f64| format!("{:+.1} %", 100.0 * change);
        lines.add_row([
            row.mechanism.to_owned(),
            format!("{}, {}", row.experiment, row.case),
            row.metric.to_owned(),
            digits(row.published_before),
            digits(row.published_after),
            or_dash(row.model_before, digits),
            or_dash(row.model_after, digits),
            percent(row.change_published),
            or_dash(row.change_predicted, percent),
            or_dash(row.difference_points, |points| format!("{points:+.1}")),
            or_dash(row.all_on, digits),
            row.violations.to_string(),
            row.verdict.to_owned(),
        ]);
    }
    align_right(&mut lines, 3..=11);
    println!("{lines}\n");
    for row in rows {
        if let Some(reason) = &row.reason {
            println!(
                "{} {} {}, {} ({}): {reason}",
                row.verdict, row.mechanism, row.experiment, row.case, row.tolerance
            );
        }
    }
}

/// Runs the experiments, prints the table and writes the report.
///
/// # Errors
/// If nothing is to be run or the output cannot be written as JSON.
pub fn run(args: &ReproduceArgs) -> Result<ExitCode> {
    let began = Instant::now();
    let all = Plan::all(args.only.as_deref());
    if all.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        let names: Vec<_> = Workload::all().iter().map(Workload::name).collect();
        return Err(usage(format_args!(
            "--only {only}: no such experiment; there are S0 to S4 and {}",
            names.join(", ")
        )));
    }
    let plans = if args.guards { Vec::new() } else { all };
    let mut results = Results::default();
    results.run(
        "running the experiments",
        plans
            .iter()
            .flat_map(|plan| [plan.before(), plan.after(), plan.alone(), plan.all_on()]),
    );
    let rows: Vec<Row> = plans.iter().map(|plan| plan.row(&results)).collect();
    let worse = worse_with_all(&plans, &results);
    if !args.json && !args.guards {
        print_rows(&rows);
    }
    let guarded = guards::plans(args.only.as_deref());
    let left_out = guards::run(&guarded, &mut results);
    let guards: Vec<_> = guarded
        .iter()
        .map(|plan| plan.row(&results, &left_out))
        .collect();
    if !args.json && !guards.is_empty() {
        print_guards(&guards);
    }
    let written = if args.no_report || args.guards {
        None
    } else {
        let page = report::build(&plans, &rows, &guards, &worse, &mut results);
        match report::write(&args.report, &page) {
            Ok(()) => Some(args.report.display().to_string()),
            Err(error) => {
                eprintln!(
                    "the report could not be written to {}: {error}; --report FILE chooses another place",
                    args.report.display()
                );
                None
            }
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    // Not those with a guard left out: there the contract may break, and a run may come to no end.
    let violations = results.violations();
    let rate = accesses_per_second(results.outcomes().chain(left_out.outcomes()));
    if args.json {
        let json = Json {
            rows: &rows,
            guards: &guards,
            violations,
            accesses_per_second: rate,
            seconds,
            report: written,
        };
        println!("{}", serde_json::to_string_pretty(&json)?);
    } else {
        conclude(&rows, &worse, violations);
        println!(
            "{:.0} s, {:.1} million accesses/s a core, each checked.",
            seconds,
            rate / 1e6
        );
        if let Some(path) = &written {
            println!("Report: {path}");
        }
    }
    for failure in results.failures() {
        eprintln!("failed: {failure}");
    }
    let good = violations == 0 && results.failures().next().is_none();
    Ok(if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Accesses of all runs for each second that a core of the host spent on them.
fn accesses_per_second<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> f64 {
    let (accesses, seconds) = outcomes.fold((0.0, 0.0), |(accesses, seconds), outcome| {
        (
            accesses + outcome.accesses_per_second * outcome.host_seconds,
            seconds + outcome.host_seconds,
        )
    });
    accesses / f64::max(seconds, 1e-9)
}

/// The sentences that a newcomer needs.
fn conclude(rows: &[Row], worse: &[(&'static Headline, f64)], violations: u64) {
    let asked = rows.iter().filter(|row| row.verdict != "shown").count();
    let hits = rows.iter().filter(|row| row.verdict == "hit").count();
    if !rows.is_empty() {
        println!(
            "\nEach row of the first table is a published measurement of a change to a kernel, before \
             and after, beside the same engine code running on a machine in software whose costs come \
             from published \"before\" figures alone: {hits} of {asked} changes are predicted within \
             their tolerance."
        );
    }
    println!(
        "{}",
        match violations {
            0 =>
                "In every run with all guards, every access of every CPU was checked against the contract (no stale \
                 translation used after its page was reused, no lost write, no stale read), and the \
                 contract held."
                    .to_owned(),
            count => format!(
                "THE CONTRACT WAS BROKEN {count} times: `quell run` with the same workload, machine \
                 and policy names each breach."
            ),
        }
    );
    if rows.is_empty() {
        return;
    }
    println!(
        "{}",
        match worse {
            [] =>
                "With every mechanism on, no experiment is worse than with its own mechanism alone; \
                 try one yourself with `quell run dontneed --cpus 16 --policy all-S4`, and see \
                 `quell list`."
                    .to_owned(),
            [..] => {
                let named: Vec<_> = worse
                    .iter()
                    .map(|(headline, percent)| {
                        format!("{} {} by {percent:.1} %", headline.experiment, headline.case)
                    })
                    .collect();
                format!(
                    "With every mechanism on, some are worse than with their own mechanism alone: {}.",
                    named.join(", ")
                )
            }
        }
    );
}

/// Prints what the guards cost.
fn print_guards(rows: &[guards::Row]) {
    let mut lines = table(&[
        "",
        "guard",
        "without it",
        "experiment",
        "gain",
        "the guard costs",
        "because of",
        "broken without",
    ]);
    for row in rows {
        lines.add_row([
            row.mechanism.to_owned(),
            row.guard.to_owned(),
            format!("{}: {}", row.clause, row.hole),
            format!("{}, {}", row.experiment, row.case),
            row.gain_text(),
            row.cost_text(),
            row.failed.clone().unwrap_or_else(|| row.explained()),
            row.broken_text(),
        ]);
    }
    align_right(&mut lines, [4, 5, 7]);
    println!("What the guards cost: time that closing a hole takes, beside the mechanism's gain\n");
    println!("{lines}\n");
    println!(
        "Gain: time saved by the mechanism with the guard in its place. Cost: time with the guard \
         against the same run without it, in which the contract may break; of several seeds the mean, \
         the least and the most, and what is below 0.1 % is chance. 0 broken: this workload does not \
         come across the hole; `quell explore --mutants NAME` does, see docs/guards.md."
    );
}
