//! Compares every published headline with the model's prediction (`quell reproduce`).
//!
//! Each headline has three runs: the kernel before the change, the same kernel with the mechanism, and the kernel with
//! all mechanisms. The report adds more: each mechanism alone, growing numbers of CPUs, and one shootdown in detail. It
//! also has every figure with each guessed parameter halved and increased by half, and the costs of the guards
//! ([`crate::guards`]).

use std::sync::Arc;

use quell::Mechanism;
use quell_clock::{MachineFile, Parameter, built_in};
use quell_conformance::{PolicyText, parse_policy};
use serde::Serialize;

use crate::headlines::{HEADLINES, Headline, Source};
use crate::jobs::{Job, Results};
use crate::numbers::{Skill, Verdict};
use crate::workloads;

/// One headline beside the model's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The mechanism, S0 to S4.
    pub mechanism: &'static str,
    /// The workload's name.
    pub experiment: &'static str,
    /// The case of the workload.
    pub case: &'static str,
    /// The figure's name.
    pub metric: &'static str,
    /// A short label if summaries have a line for it.
    pub chief: Option<&'static str>,
    /// The publication of the figures.
    pub source: Source,
    /// The published figure before the change.
    pub published_before: f64,
    /// The published figure after the change.
    pub published_after: f64,
    /// Whether the model's experiment is smaller than the published one. If so, only changes can be compared.
    pub scaled: bool,
    /// The model's figure before the change. Absent if the run failed.
    pub model_before: Option<f64>,
    /// The model's figure after the change.
    pub model_after: Option<f64>,
    /// The relative distance of the model's figure before the change from the published one.
    ///
    /// For example, 0.1 is a tenth more. Absent if the experiment is scaled down, or failed.
    pub before_off: Option<f64>,
    /// The published change. For example, -0.357 is 35.7 % less.
    pub change_published: f64,
    /// The predicted change.
    pub change_predicted: Option<f64>,
    /// The difference of predicted and published change, in percentage points.
    pub difference_points: Option<f64>,
    /// The model's figure with all mechanisms on.
    pub all_on: Option<f64>,
    /// The number of violations of the contract in these runs.
    pub violations: u64,
    /// Whether the prediction is within the tolerance.
    pub verdict: Verdict,
    /// The tolerance, in words.
    pub tolerance: String,
    /// The reason for a miss or a failure, if it's known.
    pub reason: Option<String>,
    /// The machine.
    pub machine: &'static str,
    /// The number of CPUs.
    pub cpus: usize,
    /// The mechanisms before the change.
    pub policy_before: String,
    /// The mechanisms after the change.
    pub policy_after: String,
}

/// The runs of one headline.
pub struct Experiment {
    /// The headline.
    pub headline: &'static Headline,
    machine: Arc<MachineFile>,
}

impl Experiment {
    /// Returns the experiments of the headlines that `only` selects, or all of them.
    pub fn all(only: Option<&str>) -> Vec<Experiment> {
        let selects = |headline: &&Headline| {
            only.is_none_or(|only| {
                only.eq_ignore_ascii_case(headline.mechanism.name()) || only == headline.experiment
            })
        };
        let plan = |headline: &'static Headline| Experiment {
            headline,
            machine: Arc::new(headline.machine()),
        };
        HEADLINES.iter().filter(selects).map(plan).collect()
    }

    /// Returns a run of this headline under a policy, with the details of the headline.
    pub fn job(&self, policy: &str) -> Job {
        Job::new(
            self.machine.clone(),
            self.headline.workload(false),
            self.headline.policy(policy),
            self.headline.cpus,
        )
    }

    /// Returns the run of the kernel before the change.
    pub fn before(&self) -> Job {
        let policy = self.headline.before();
        Job { policy, ..self.job("baseline") }
    }

    /// Returns the run of the same kernel with the mechanism.
    pub fn after(&self) -> Job {
        let policy = self.headline.after();
        Job { policy, ..self.job("baseline") }
    }

    /// Returns the runs that its [row](Experiment::row) needs.
    pub fn runs(&self) -> [Job; 3] {
        [self.before(), self.after(), self.job("all")]
    }

    /// Returns the run by which the report compares mechanisms.
    ///
    /// It has fewer reading CPUs than the headline's run, because without batches each page would interrupt all of
    /// them.
    pub fn compared(&self, policy: &str) -> Job {
        let job = self.job(policy);
        if self.headline.experiment == "readers" { self.varied(job, None) } else { job }
    }

    /// Returns the same run with one parameter scaled.
    ///
    /// The run is shorter and has fewer CPUs if the headline allows it.
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

    /// Returns by how many percent all mechanisms make the figure worse than none.
    ///
    /// Returns `None` if it isn't worse. Both figures are from the [compared](Experiment::compared) runs.
    pub fn worse_with_all(&self, results: &Results) -> Option<f64> {
        let [off, all] = ["baseline", "all"].map(|policy| self.compared(policy));
        let change = self.change(results, &off, &all)?;
        let loss = match self.headline.more_is_better() {
            true => -change,
            false => change,
        };
        (loss > WORSE_PERCENT).then_some(loss)
    }

    /// Returns the figure of a job that has run.
    pub fn figure(&self, results: &Results, job: &Job) -> Result<f64, String> {
        let outcome = results.get(job)?;
        let figure = self.headline.read(outcome, &job.workload);
        if figure.is_finite() { Ok(figure) } else { Err("the run measured nothing".into()) }
    }

    /// Returns the change from one job to another, in percent.
    pub fn change(&self, results: &Results, from: &Job, to: &Job) -> Option<f64> {
        let figure = |job| self.figure(results, job).ok();
        Some(100.0 * (figure(to)? / figure(from)? - 1.0)).filter(|change| change.is_finite())
    }

    /// Builds the headline's row. Its runs must be in `results`.
    pub fn row(&self, results: &Results) -> Row {
        let headline = self.headline;
        let jobs = self.runs();
        let [before, after, all_on] = jobs.each_ref().map(|job| self.figure(results, job));
        let failed = [&before, &after, &all_on].into_iter().find_map(|figure| figure.clone().err());
        let (before, after) = (before.ok(), after.ok());
        let change_predicted = before.zip(after).map(|(before, after)| after / before - 1.0);
        let change_published = headline.published_change();
        let verdict =
            before.zip(after).is_some_and(|(before, after)| headline.verdict(before, after));
        let (verdict, reason) = match (&failed, verdict) {
            (Some(failed), _) => (Verdict::Failed, Some(failed.clone())),
            (None, true) => (Verdict::Hit, None),
            (None, false) => (Verdict::Miss, Some(headline.caveat.to_owned())),
        };
        Row {
            mechanism: headline.mechanism.name(),
            experiment: headline.experiment,
            case: headline.case,
            metric: headline.metric,
            chief: headline.chief,
            source: headline.source,
            published_before: headline.published.0,
            published_after: headline.published.1,
            scaled: headline.scaled,
            model_before: before,
            model_after: after,
            before_off: before.and_then(|before| headline.before_off(before)),
            change_published,
            change_predicted,
            difference_points: change_predicted.map(|change| 100.0 * (change - change_published)),
            all_on: all_on.ok(),
            violations: results.violations_of(&jobs),
            verdict,
            tolerance: headline.tolerance.words(),
            reason,
            machine: headline.machine,
            cpus: headline.cpus,
            policy_before: PolicyText(jobs[0].policy).to_string(),
            policy_after: PolicyText(jobs[1].policy).to_string(),
        }
    }
}

/// The number of CPUs of [`many_cpus`].
pub const MANY_CPUS: usize = 512;

/// Returns the runs of one discard that interrupts [`MANY_CPUS`], without and with S4.
///
/// No measurement is published for so many CPUs.
pub fn many_cpus() -> [Job; 2] {
    let workload = workloads::known("dontneed", ["iterations=64"]);
    let machine = Arc::new(built_in("haswell-server").expect("a machine"));
    ["baseline", "S4"].map(|policy| {
        let policy = parse_policy(policy).expect("a policy");
        Job::new(machine.clone(), workload, policy, MANY_CPUS)
    })
}

/// Returns the change from the first of [`many_cpus`] to the second. For example, -0.9 is 90 % less.
pub fn change_on_many_cpus(results: &Results) -> Option<f64> {
    let [before, after] = many_cpus().map(|job| {
        let outcome = results.get(&job).ok()?;
        Some(outcome.measure.value)
    });
    Some(after? / before? - 1.0)
}

/// The change that counts as worse. A few more loads and stores cost less.
const WORSE_PERCENT: f64 = 1.0;

/// Builds the rows of all headlines: failures first, then misses, then hits.
pub fn rows(plans: &[Experiment], results: &Results) -> Vec<Row> {
    let mut rows: Vec<Row> = plans.iter().map(|plan| plan.row(results)).collect();
    rows.sort_by_key(|row| row.verdict);
    rows
}

/// Returns the number of rows whose change is predicted within the tolerance.
pub fn hits(rows: &[&Row]) -> usize {
    rows.iter().filter(|row| row.verdict == Verdict::Hit).count()
}

/// Returns the skill of the predictions.
pub fn skill(rows: &[Row]) -> Skill {
    let pair = |row: &Row| Some((1.0 + row.change_published, 1.0 + row.change_predicted?));
    Skill::of(&rows.iter().filter_map(pair).collect::<Vec<_>>())
}

/// Returns the policies of the report's table in which each mechanism is on alone.
pub fn single_policies() -> impl Iterator<Item = (Mechanism, &'static str)> {
    Mechanism::ALL.into_iter().map(|mechanism| (mechanism, mechanism.name()))
}
