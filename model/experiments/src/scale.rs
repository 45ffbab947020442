//! Runs one workload on growing numbers of CPUs, under several policies.

use std::sync::Arc;

use quell_clock::{MachineFile, Parameter as P};
use quell_workloads::Workload;
use quell_workloads::files::hint;
use serde::Serialize;

use crate::charts::{COLORS, Chart, Line, VerticalScale};
use crate::jobs::{Job, Results};
use crate::policies::PolicyChoice;
use crate::run::CallLatency;
use crate::trial::Outcome;

/// The runs of a scale experiment.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The machine.
    pub machine: Arc<MachineFile>,
    /// The workload.
    pub workload: Workload,
    /// The policies. Each runs on every number of CPUs.
    pub policies: Vec<PolicyChoice>,
    /// The numbers of CPUs. The workload skips numbers that it doesn't support.
    pub cpus: Vec<usize>,
    /// The figure to show.
    pub show: ShownFigure,
    /// Whether each point also has the [bound](FlushBound) of the workload's own figure, after the policies' values.
    pub bound: bool,
}

/// A bound on the time of a call that flushes one page on all CPUs.
///
/// An interrupt tells the other CPUs, and their answers come back in a tree: each of its levels is one transfer of a
/// cache line. Meanwhile the CPU invalidates the page itself. All other work of the call is as on a single CPU. The
/// bound isn't strict: a protocol without interrupts, or one that doesn't wait for answers, can be faster.
#[derive(Clone, Copy, Debug)]
pub struct FlushBound {
    /// The time of the call on a single CPU, in nanoseconds, like all other times.
    alone: f64,
    invalidation: f64,
    interrupt: f64,
    remote: f64,
    transfer: f64,
    remote_transfer: f64,
    socket: f64,
}

impl FlushBound {
    /// Takes the costs of the machine. `alone` is the time of the call on a single CPU, in nanoseconds.
    pub fn new(machine: &MachineFile, alone: f64) -> Self {
        let of = |parameter| machine.time(parameter) as f64 / 1e3;
        Self {
            alone,
            invalidation: of(P::InvalidatePage),
            interrupt: of(P::InterruptSend) + of(P::InterruptDelivery) + of(P::InterruptEntry),
            remote: of(P::InterruptRemote),
            transfer: of(P::TransferSocket),
            remote_transfer: of(P::TransferRemote),
            socket: machine.count(P::CpusPerSocket) as f64,
        }
    }

    /// Returns the bound for this number of CPUs, in nanoseconds.
    pub fn nanoseconds(&self, cpus: usize) -> f64 {
        if cpus < 2 {
            return self.alone;
        }
        let sockets = (cpus as f64 / self.socket).ceil();
        let levels = (cpus as f64).min(self.socket).log2().ceil();
        let remote = match sockets > 1.0 {
            true => self.remote + self.remote_transfer * sockets.log2().ceil(),
            false => 0.0,
        };
        let answered = self.interrupt + self.transfer * levels + remote;
        self.alone + (answered - self.invalidation).max(0.0)
    }
}

/// A figure of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShownFigure {
    /// The workload's own.
    Figure,
    /// The interrupts that were sent for an operation.
    Interrupts,
    /// The median duration of a kind of call, in nanoseconds.
    Call(String),
}

impl ShownFigure {
    /// Returns the figure's name, if it isn't the workload's own.
    pub fn name(&self, workload: &Workload) -> Option<String> {
        match self {
            ShownFigure::Figure => None,
            ShownFigure::Interrupts => {
                Some(format!("interrupts sent for each {}", workload.operation()))
            }
            ShownFigure::Call(call) => Some(format!("ns, median of {call}")),
        }
    }

    fn of(&self, outcome: &Outcome) -> Option<f64> {
        match self {
            ShownFigure::Figure => Some(outcome.measure.value),
            ShownFigure::Interrupts => {
                Some(outcome.machine.interrupts_sent as f64 / outcome.operations as f64)
            }
            ShownFigure::Call(call) => CallLatency::all(outcome)
                .into_iter()
                .find(|known| known.call == *call)
                .map(|known| known.median_ns),
        }
    }
}

/// The figures on one number of CPUs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The number of CPUs.
    pub cpus: usize,
    /// The figure under each policy. Absent if the run failed or measured nothing.
    pub values: Vec<Option<f64>>,
}

/// A workload that can't be run, or lacks the figure to show.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScaleError {
    /// The workload supports none of the numbers of CPUs.
    #[error("{workload} runs on none of these numbers of CPUs: {why}")]
    NoCpus {
        /// The workload's name.
        workload: &'static str,
        /// Why it can't run on the last of these numbers.
        why: String,
    },
    /// The workload's figure isn't the time of a call, so it has no bound.
    #[error("--bound: the figure of {workload} is no time: {metric}")]
    NoTime {
        /// The workload's name.
        workload: &'static str,
        /// The name of its figure.
        metric: &'static str,
    },
    /// The run on a single CPU failed, from which the bound follows.
    #[error("--bound: {0}")]
    NotAlone(String),
    /// The workload makes no such call.
    #[error("{workload} makes no call `{call}`{}; it makes {}", hint(call, made.iter().copied()), made.join(", "))]
    NoCall {
        /// The workload's name.
        workload: &'static str,
        /// The name of the call.
        call: String,
        /// The names of the calls that the workload makes.
        made: Vec<&'static str>,
    },
}

/// The results of a scale experiment.
pub struct ScaleResults {
    /// The figure's name.
    pub metric: &'static str,
    /// The points, one for each number of CPUs.
    pub points: Vec<Point>,
    /// The outcomes and errors of all runs.
    pub results: Results,
}

impl Sweep {
    /// Returns the numbers of CPUs on which the workload runs.
    fn counts(&self) -> Result<Vec<usize>, ScaleError> {
        let mut refused = String::new();
        let mut runs = |&cpus: &usize| {
            let fitted = self.workload.fitted(cpus);
            fitted.map_err(|why| refused = why).is_ok()
        };
        let counts: Vec<usize> = self.cpus.iter().copied().filter(&mut runs).collect();
        if counts.is_empty() {
            return Err(ScaleError::NoCpus { workload: self.workload.name(), why: refused });
        }
        Ok(counts)
    }

    fn job(&self, policy: PolicyChoice, cpus: usize) -> Job {
        // Points that don't fit are already omitted.
        let workload = self.workload.fitted(cpus).unwrap_or(self.workload);
        Job::new(self.machine.clone(), workload, policy, cpus)
    }

    /// Runs the workload on a single CPU, and returns the bound that follows from its time.
    fn flush_bound(&self, results: &mut Results) -> Result<FlushBound, ScaleError> {
        let alone = self.job(self.policies[0], 1);
        results.run("running", [alone.clone()]);
        let outcome = results.get(&alone).map_err(|why| ScaleError::NotAlone(why.to_owned()))?;
        let metric = outcome.measure.metric;
        if !metric.starts_with("ns ") {
            return Err(ScaleError::NoTime { workload: self.workload.name(), metric });
        }
        Ok(FlushBound::new(&self.machine, outcome.measure.value))
    }

    /// Performs all runs.
    ///
    /// A failed run leaves a gap in its point, and its error is in the results.
    ///
    /// # Errors
    /// If the workload supports none of the numbers of CPUs, makes no such call in the first run, or has no bound.
    pub fn run(&self) -> Result<ScaleResults, ScaleError> {
        let counts = self.counts()?;
        let mut results = Results::default();
        let bound = match self.bound {
            true => Some(self.flush_bound(&mut results)?),
            false => None,
        };
        if let (ShownFigure::Call(call), [policy, ..]) = (&self.show, &self.policies[..]) {
            let first = self.job(*policy, counts[0]);
            results.run("running", [first.clone()]);
            if let Ok(outcome) = results.get(&first)
                && self.show.of(outcome).is_none()
            {
                return Err(ScaleError::NoCall {
                    workload: self.workload.name(),
                    call: call.clone(),
                    made: outcome.latencies.iter().map(|made| made.call).collect(),
                });
            }
        }
        let jobs =
            counts.iter().flat_map(|&cpus| self.policies.iter().map(move |&policy| (policy, cpus)));
        results.run("running", jobs.map(|(policy, cpus)| self.job(policy, cpus)));
        let points = counts
            .iter()
            .map(|&cpus| Point {
                cpus,
                values: self
                    .policies
                    .iter()
                    .map(|&policy| {
                        let outcome = results.get(&self.job(policy, cpus)).ok()?;
                        self.show.of(outcome).filter(|value| value.is_finite())
                    })
                    .chain(bound.map(|bound| Some(bound.nanoseconds(cpus))))
                    .collect(),
            })
            .collect();
        let metric = results.outcomes().next().map_or("", |outcome| outcome.measure.metric);
        Ok(ScaleResults { metric, points, results })
    }
}

/// Divides the values of each point by the first policy's.
pub fn relative(points: &[Point]) -> Vec<Point> {
    let of = |point: &Point| Point {
        cpus: point.cpus,
        values: point
            .values
            .iter()
            .map(|value| Some((*value)? / point.values[0].filter(|&first| first > 0.0)?))
            .collect(),
    };
    points.iter().map(of).collect()
}

/// Returns a line for each policy; `names` are the policies' names.
pub(crate) fn lines(names: &[&str], points: &[Point]) -> Vec<Line> {
    names
        .iter()
        .zip(COLORS.into_iter().cycle())
        .enumerate()
        .map(|(index, (policy, color))| Line {
            name: (*policy).to_owned(),
            color,
            points: points
                .iter()
                .filter_map(|point| {
                    let value = point.values[index].filter(|&value| value > 0.0)?;
                    Some((point.cpus as f64, value))
                })
                .collect(),
        })
        .filter(|line| !line.points.is_empty())
        .collect()
}

/// Draws the points as an SVG file.
///
/// `names` are the policies' names, and `up` is the unit of the values.
pub fn plot(
    title: &str,
    names: &[&str],
    points: &[Point],
    up: &str,
    upward: VerticalScale,
) -> String {
    let chart = Chart {
        title,
        lines: &lines(names, points),
        rings: &[],
        right: "CPUs",
        power: |cpus| format!("{cpus}"),
        up,
        upward,
    };
    chart.file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_grows_by_a_transfer_for_each_doubling() {
        let machine = quell_clock::built_in("haswell-server").unwrap();
        let bound = FlushBound::new(&machine, 1000.0);
        let step = |cpus| bound.nanoseconds(2 * cpus) - bound.nanoseconds(cpus);
        assert_eq!(bound.nanoseconds(1), 1000.0);
        for (cpus, transfer) in [(4, 33.5), (8, 33.5), (96, 113.0), (384, 113.0)] {
            assert!((step(cpus) - transfer).abs() < 1e-6, "{cpus}: {}", step(cpus));
        }
    }
}
