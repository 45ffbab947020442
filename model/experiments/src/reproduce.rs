//! `quell reproduce`: every published headline beside what the model predicts.
//!
//! For each headline three runs: the kernel before the change, the same with the mechanism, and
//! everything on. For the report also each mechanism alone, everything on a growing number of
//! CPUs, one shootdown in detail, and every figure again with each guessed parameter half as large
//! and half as large again. After the headlines stands what the guards cost ([`crate::guards`]).

use std::collections::HashMap;
use std::sync::Arc;

use quell::Mechanism;
use quell_clock::{MachineFile, Parameter, built_in};
use serde::Serialize;

use crate::headlines::{HEADLINES, Headline};
use crate::jobs::{Job, Results};

/// One headline beside the model's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// S0 to S4.
    pub mechanism: &'static str,
    /// The workload.
    pub experiment: &'static str,
    /// Which case of it.
    pub case: &'static str,
    /// What the figures say.
    pub metric: &'static str,
    /// What stands for the mechanism where there is one line for it; absent in other rows.
    pub chief: Option<&'static str>,
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

/// The runs of one headline.
pub struct Experiment {
    /// The headline.
    pub headline: &'static Headline,
    machine: Arc<MachineFile>,
}

impl Experiment {
    /// Those of all headlines that `only` asks for.
    pub fn all(only: Option<&str>) -> Vec<Experiment> {
        let mut machines: HashMap<&str, Arc<MachineFile>> = HashMap::new();
        HEADLINES
            .iter()
            .filter(|headline| {
                only.is_none_or(|only| {
                    only.eq_ignore_ascii_case(headline.mechanism.name())
                        || only == headline.experiment
                })
            })
            .filter_map(|headline| {
                let machine = match machines.get(headline.machine) {
                    Some(machine) => machine.clone(),
                    None => Arc::new(built_in(headline.machine)?),
                };
                machines.insert(headline.machine, machine.clone());
                Some(Experiment { headline, machine })
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
        self.job(self.headline.mechanism.name())
    }

    /// Everything on.
    pub fn all_on(&self) -> Job {
        self.job("all")
    }

    /// The runs that its [row](Experiment::row) needs.
    pub fn runs(&self) -> [Job; 4] {
        [self.before(), self.after(), self.alone(), self.all_on()]
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

    /// What came of the runs, which must be in `results`.
    pub fn row(&self, results: &Results) -> Row {
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
            mechanism: headline.mechanism.name(),
            experiment: headline.experiment,
            case: headline.case,
            metric: headline.metric,
            chief: headline.chief,
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
            policy_before: jobs[0].policy.to_string(),
            policy_after: jobs[1].policy.to_string(),
        }
    }
}

/// How much worse than with its own mechanism alone an experiment may come out with everything on
/// before it is called worse: what a few more loads and stores cost.
const WORSE: f64 = 0.01;

/// How many of these changes are predicted within their tolerance, and of how many that is asked.
pub fn hits(rows: &[&Row]) -> (usize, usize) {
    let asked = rows.iter().filter(|row| row.verdict != "shown").count();
    let hits = rows.iter().filter(|row| row.verdict == "hit").count();
    (hits, asked)
}

/// Headlines that are worse with everything on than with their own mechanism alone, in percent.
pub fn worse_with_all(plans: &[Experiment], results: &Results) -> Vec<(&'static Headline, f64)> {
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

/// The policies of the report's table of what each mechanism does alone.
pub fn single_policies() -> impl Iterator<Item = (Mechanism, &'static str)> {
    Mechanism::ALL
        .into_iter()
        .map(|mechanism| (mechanism, mechanism.name()))
}
