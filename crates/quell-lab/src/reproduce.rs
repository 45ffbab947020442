//! `quell reproduce`: every published headline beside what the model predicts.
//!
//! For each headline three runs: the kernel before the change, the same with the mechanism, and
//! everything on. For the report also each mechanism alone, everything on a growing number of
//! CPUs, one shootdown in detail, and every figure again with each guessed parameter half as large
//! and half as large again. After the headlines stands what the guards cost ([`crate::guards`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use quell::Mechanism;
use quell_clock::{MachineFile, Parameter, built_in};
use quell_workloads::Workload;
use serde::Serialize;

use crate::bench::{Job, Results};
use crate::guards;
use crate::headlines::{HEADLINES, Headline};
use crate::policy::seed;
use crate::report;
use crate::table::{align_right, table};
use crate::trial::Outcome;

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
    /// Only this seed, S0 to S4, or this workload
    #[arg(long, value_name = "SEED|WORKLOAD")]
    only: Option<String>,
}

/// One headline beside the model's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// S0 to S4.
    pub seed: &'static str,
    /// The workload.
    pub experiment: &'static str,
    /// Which case of it.
    pub case: &'static str,
    /// What the figures say.
    pub metric: &'static str,
    /// Published, before the change.
    pub published_before: f64,
    /// Published, after it.
    pub published_after: f64,
    /// The model's figure before the change; absent if the run failed.
    pub model_before: Option<f64>,
    /// After it.
    pub model_after: Option<f64>,
    /// The published change: -0.357 is 35.7 % less.
    pub change_published: f64,
    /// The model's change.
    pub change_predicted: Option<f64>,
    /// The difference of the two, in percentage points.
    pub difference_points: Option<f64>,
    /// The model's figure with everything on.
    pub all_on: Option<f64>,
    /// Breaches of the contract in these runs.
    pub violations: u64,
    /// `hit`, `miss`, `shown` where nothing is asked, `failed` where a run came to no end.
    pub verdict: &'static str,
    /// What is asked.
    pub tolerance: String,
    /// Why it misses or failed, as far as known.
    pub reason: Option<String>,
    /// The machine.
    pub machine: &'static str,
    /// How many CPUs.
    pub cpus: usize,
    /// The mechanisms before the change.
    pub policy_before: String,
    /// The mechanisms after it.
    pub policy_after: String,
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

/// The runs of one headline.
pub struct Plan {
    /// The headline.
    pub headline: &'static Headline,
    machine: Arc<MachineFile>,
}

impl Plan {
    /// The plans of all headlines that `only` asks for.
    fn all(only: Option<&str>) -> Vec<Plan> {
        let mut machines: HashMap<&str, Arc<MachineFile>> = HashMap::new();
        HEADLINES
            .iter()
            .filter(|headline| {
                only.is_none_or(|only| {
                    only.eq_ignore_ascii_case(seed(headline.mechanism))
                        || only == headline.experiment
                })
            })
            .filter_map(|headline| {
                let machine = match machines.get(headline.machine) {
                    Some(machine) => machine.clone(),
                    None => Arc::new(built_in(headline.machine)?),
                };
                machines.insert(headline.machine, machine.clone());
                Some(Plan { headline, machine })
            })
            .collect()
    }

    /// A run of this headline under a policy, with the headline's own details.
    pub fn job(&self, policy: &str) -> Job {
        Job::new(
            self.machine.clone(),
            self.headline.workload(false),
            self.headline.policy(policy),
            self.headline.cpus,
        )
    }

    /// The kernel before the change.
    pub fn before(&self) -> Job {
        let policy = self.headline.before();
        Job {
            policy,
            ..self.job("baseline")
        }
    }

    /// The same kernel with the mechanism.
    pub fn after(&self) -> Job {
        let policy = self.headline.after();
        Job {
            policy,
            ..self.job("baseline")
        }
    }

    /// The mechanism and nothing else.
    pub fn alone(&self) -> Job {
        self.job(seed(self.headline.mechanism))
    }

    /// Everything on.
    pub fn all_on(&self) -> Job {
        self.job("all")
    }

    /// The run that the report compares mechanisms by: the headline's own, but for readers on fewer
    /// CPUs, because without batches each page would interrupt all of them.
    pub fn compared(&self, policy: &str) -> Job {
        let job = self.job(policy);
        if self.headline.experiment == "readers" {
            self.varied(job, None)
        } else {
            job
        }
    }

    /// The same run, shorter and on fewer CPUs if the headline says so, on a machine with one
    /// parameter scaled.
    pub fn varied(&self, job: Job, change: Option<(Parameter, f64)>) -> Job {
        let workload = self.headline.workload(true);
        let cpus = match workload.check(job.cpus) {
            Ok(()) => job.cpus,
            Err(_) => workload.cpus(),
        };
        let job = Job { cpus, ..job };
        match change {
            None => Job { workload, ..job },
            Some((parameter, factor)) => Job {
                machine: Arc::new(job.machine.scaled(parameter, factor)),
                variant: format!("{}*{factor}", parameter.name()),
                workload,
                ..job
            },
        }
    }

    /// The figure of a job that was run.
    pub fn figure(&self, results: &Results, job: &Job) -> Result<f64, String> {
        let outcome = results.get(job)?;
        let figure = self.headline.read(outcome, &job.workload);
        if figure.is_finite() {
            Ok(figure)
        } else {
            Err("the run measured nothing".into())
        }
    }

    /// The change from one job to another, in percent.
    pub fn change(&self, results: &Results, from: &Job, to: &Job) -> Option<f64> {
        let figure = |job| self.figure(results, job).ok();
        Some(100.0 * (figure(to)? / figure(from)? - 1.0)).filter(|change| change.is_finite())
    }

    fn row(&self, results: &Results) -> Row {
        let headline = self.headline;
        let jobs = [self.before(), self.after(), self.all_on()];
        let [before, after, all_on] = jobs.each_ref().map(|job| self.figure(results, job));
        let violations = jobs
            .iter()
            .filter_map(|job| results.get(job).ok())
            .map(|outcome| outcome.violations)
            .sum();
        let failed = [&before, &after, &all_on]
            .into_iter()
            .find_map(|figure| figure.clone().err());
        let (before, after) = (before.ok(), after.ok());
        let change_predicted = before
            .zip(after)
            .map(|(before, after)| after / before - 1.0);
        let change_published = headline.published_change();
        let verdict = before
            .zip(after)
            .and_then(|(before, after)| headline.verdict(before, after));
        let (verdict, reason) = match (&failed, verdict) {
            (Some(failed), _) => ("failed", Some(failed.clone())),
            (None, Some(true)) => ("hit", None),
            (None, Some(false)) => ("miss", Some(headline.caveat.to_owned())),
            (None, None) => ("shown", None),
        };
        Row {
            seed: seed(headline.mechanism),
            experiment: headline.experiment,
            case: headline.case,
            metric: headline.metric,
            published_before: headline.published.0,
            published_after: headline.published.1,
            model_before: before,
            model_after: after,
            change_published,
            change_predicted,
            difference_points: change_predicted.map(|change| 100.0 * (change - change_published)),
            all_on: all_on.ok(),
            violations,
            verdict,
            tolerance: headline.tolerance.words(),
            reason,
            machine: headline.machine,
            cpus: headline.cpus,
            policy_before: jobs[0].policy.text.clone(),
            policy_after: jobs[1].policy.text.clone(),
        }
    }
}

/// How much worse than with its own mechanism alone an experiment may come out with everything on
/// before it is called worse: what a few more loads and stores cost.
const WORSE: f64 = 0.01;

/// Headlines that are worse with everything on than with their own mechanism alone, in percent.
pub fn worse_with_all(plans: &[Plan], results: &Results) -> Vec<(&'static Headline, f64)> {
    plans
        .iter()
        .filter_map(|plan| {
            let alone = plan.figure(results, &plan.alone()).ok()?;
            let all = plan.figure(results, &plan.all_on()).ok()?;
            let loss = if plan.headline.more_is_better() {
                alone / all - 1.0
            } else {
                all / alone - 1.0
            };
            (loss > WORSE).then_some((plan.headline, 100.0 * loss))
        })
        .collect()
}

/// A figure with four digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
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
            row.seed.to_owned(),
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
                row.verdict, row.seed, row.experiment, row.case, row.tolerance
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
        return Err(crate::usage::usage(format_args!(
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
        guards::print(&guards);
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

/// The policies of the report's table of what each mechanism does alone.
pub fn single_policies() -> impl Iterator<Item = (Mechanism, &'static str)> {
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| (mechanism, seed(mechanism)))
}
