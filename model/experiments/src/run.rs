//! Turns one run into data, for `quell run --json` and other languages.
//!
//! A [`Report`] contains all figures of one seed. It also contains the workload's figure with other seeds, which shows
//! how far that depends on the seed. All figures are the same on every host, except the host's speed and duration.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use quell_clock::Latency;
use serde::{Deserialize, Serialize};

use crate::jobs::{Job, in_order};
use crate::lines::LineProfile;
use crate::policies;
use crate::trial::{Outcome, TrialError};

/// The inputs and results of a run.
#[derive(Serialize)]
pub struct Report {
    workload: &'static str,
    machine: String,
    policy: String,
    cpus: usize,
    seed: u64,
    without: Vec<&'static str>,
    parameters: BTreeMap<&'static str, u64>,
    metric: &'static str,
    value: Option<f64>,
    /// The figure with each seed, including the first.
    values: Vec<Option<f64>>,
    window_ns: f64,
    elapsed_ns: f64,
    latencies: Vec<CallLatency>,
    engine: BTreeMap<&'static str, u64>,
    machine_counts: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<LineProfile>,
    violations: u64,
    /// Accesses that break a clause which the policy gives up.
    expected_violations: u64,
    breaches: Vec<String>,
    accesses_per_second: f64,
    host_seconds: f64,
}

/// The durations of one kind of call, in nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CallLatency {
    pub(crate) call: String,
    pub(crate) count: u64,
    pub(crate) median_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) worst_ns: f64,
}

impl CallLatency {
    /// Returns the latencies of every kind of call in a run's measured window.
    pub fn all(outcome: &Outcome) -> Vec<CallLatency> {
        let nanoseconds = |time: u64| time as f64 / 1e3;
        let of = |latency: &Latency| CallLatency {
            call: latency.call.to_owned(),
            count: latency.count,
            median_ns: nanoseconds(latency.percentile(50)),
            p99_ns: nanoseconds(latency.percentile(99)),
            worst_ns: nanoseconds(latency.worst),
        };
        outcome.run.latencies.iter().map(of).collect()
    }
}

impl Report {
    /// Builds the report of a run.
    ///
    /// `values` are the workload's figures with each seed, the job's own first. A figure that isn't finite is left
    /// empty.
    pub fn of(job: &Job, outcome: &Outcome, values: &[f64]) -> Report {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        let workload = &job.workload;
        Report {
            workload: workload.name(),
            machine: job.machine.name().to_owned(),
            policy: policies::name_of(&job.machine, job.policy),
            cpus: job.cpus,
            seed: job.seed,
            without: job.without.to_vec(),
            parameters: workload
                .parameters()
                .iter()
                .filter_map(|parameter| Some((parameter.name, workload.get(parameter.name)?)))
                .collect(),
            metric: outcome.measure.metric,
            value: finite(outcome.measure.value),
            values: values.iter().copied().map(finite).collect(),
            window_ns: outcome.window_nanoseconds,
            elapsed_ns: outcome.run.elapsed as f64 / 1e3,
            latencies: CallLatency::all(outcome),
            engine: outcome
                .engine
                .iter()
                .map(|(counter, count)| (counter.label(), count))
                .collect(),
            machine_counts: outcome.machine.rows().map(|(name, _, count)| (name, count)).collect(),
            lines: LineProfile::of(workload.operation(), outcome),
            violations: outcome.run.violation_count,
            expected_violations: outcome.run.expected_violations,
            breaches: outcome.run.violations.iter().map(ToString::to_string).collect(),
            accesses_per_second: outcome.run.accesses_per_second(),
            host_seconds: outcome.run.host_seconds,
        }
    }
}

/// Runs a job with several seeds on all cores, and shows the progress.
///
/// The job's own seed is the first of `seeds` seeds, and the only one with a trace. Calls `each` after each seed, on
/// its core. After `stop` is set, no further seed starts, those under way finish, and the result is `None`.
pub fn outcomes(
    job: &Job,
    seeds: u16,
    stop: &AtomicBool,
    each: impl Fn() + Sync,
) -> Option<Vec<Result<Outcome, TrialError>>> {
    let jobs: Vec<_> = (0..seeds.max(1))
        .map(|step| Job {
            seed: job.seed.wrapping_add(step.into()),
            trace: if step == 0 { job.trace } else { 0 },
            lines: job.lines && step == 0,
            ..job.clone()
        })
        .collect();
    let outcomes: Vec<_> = jobs.iter().map(|_| OnceLock::new()).collect();
    let what = format!("running {}", job.workload.name());
    in_order(
        &what,
        &jobs,
        |job| job.cpus,
        stop,
        |index, job, progress| {
            let _ = outcomes[index].set(job.run_watched(progress));
            each();
        },
    );
    outcomes.into_iter().map(OnceLock::into_inner).collect()
}

/// Returns the figure of each seed, or `NAN` for a seed that failed.
pub fn values(outcomes: &[Result<Outcome, TrialError>]) -> Vec<f64> {
    let value = |outcome: &Outcome| outcome.measure.value;
    let all = outcomes.iter().map(|outcome| outcome.as_ref().map_or(f64::NAN, value));
    all.collect()
}

/// Runs a job like [`outcomes`], and reports the figures of the first seed.
///
/// # Errors
/// The error of the first seed. If another seed fails, its figure is missing.
pub fn with_seeds(
    job: &Job,
    seeds: u16,
    stop: &AtomicBool,
    each: impl Fn() + Sync,
) -> Result<Option<Report>, TrialError> {
    let Some(outcomes) = outcomes(job, seeds, stop, each) else {
        return Ok(None);
    };
    let values = values(&outcomes);
    let Some(first) = outcomes.into_iter().next() else {
        return Ok(None);
    };
    Ok(Some(Report::of(job, &first?, &values)))
}
