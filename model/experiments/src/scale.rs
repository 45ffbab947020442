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
pub(crate) struct Sweep {
    pub machine: Arc<MachineFile>,
    pub workload: Workload,
    /// Each runs on every number of CPUs that the workload supports.
    pub policies: Vec<PolicyChoice>,
    pub cpus: Vec<usize>,
    pub show: ShownFigure,
    /// Whether each point also has the bound of the workload's own figure, after the policies' values.
    pub bound: bool,
}

/// Returns a bound on the time of a call that flushes one page on all CPUs, in nanoseconds. `alone` is the time of the
/// call on a single CPU.
///
/// An interrupt tells the other CPUs, and their answers come back in a tree: each of its levels is one transfer of a
/// cache line. Meanwhile the CPU invalidates the page itself. All other work of the call is as on a single CPU. The
/// bound isn't strict: a protocol without interrupts, or one that doesn't wait for answers, can be faster.
fn flush_bound(machine: &MachineFile, alone: f64, cpus: usize) -> f64 {
    if cpus < 2 {
        return alone;
    }
    let of = |parameter| machine.time(parameter) as f64 / 1e3;
    let socket = machine.count(P::CpusPerSocket) as f64;
    let sockets = (cpus as f64 / socket).ceil();
    let levels = (cpus as f64).min(socket).log2().ceil();
    let remote = match sockets > 1.0 {
        true => of(P::InterruptRemote) + of(P::TransferRemote) * sockets.log2().ceil(),
        false => 0.0,
    };
    let interrupt = of(P::InterruptSend) + of(P::InterruptDelivery) + of(P::InterruptEntry);
    let answered = interrupt + of(P::TransferSocket) * levels + remote;
    alone + (answered - of(P::InvalidatePage)).max(0.0)
}

/// A figure of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ShownFigure {
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

/// The results of a scale experiment.
pub(crate) struct ScaleResults {
    /// The figure's name.
    pub metric: &'static str,
    /// The points, one for each number of CPUs.
    pub points: Vec<Point>,
    pub results: Results,
}

impl Sweep {
    /// Returns the numbers of CPUs on which the workload runs.
    fn counts(&self) -> Result<Vec<usize>, String> {
        let mut refused = String::new();
        let mut runs = |&cpus: &usize| {
            let fitted = self.workload.fitted(cpus);
            fitted.map_err(|why| refused = why).is_ok()
        };
        let counts: Vec<usize> = self.cpus.iter().copied().filter(&mut runs).collect();
        if counts.is_empty() {
            return Err(format!(
                "{} runs on none of these numbers of CPUs: {refused}",
                self.workload.name()
            ));
        }
        Ok(counts)
    }

    fn job(&self, policy: PolicyChoice, cpus: usize) -> Job {
        // Points that don't fit are already omitted.
        let workload = self.workload.fitted(cpus).unwrap_or(self.workload);
        Job::new(self.machine.clone(), workload, policy, cpus)
    }

    /// Runs the workload on a single CPU, and returns its time, from which the bound follows.
    fn time_alone(&self, results: &mut Results) -> Result<f64, String> {
        let alone = self.job(self.policies[0], 1);
        results.run("running", [alone.clone()]);
        let outcome = results.get(&alone).map_err(|why| format!("--bound: {why}"))?;
        let metric = outcome.measure.metric;
        if !metric.starts_with("ns ") {
            let workload = self.workload.name();
            return Err(format!("--bound: the figure of {workload} is no time: {metric}"));
        }
        Ok(outcome.measure.value)
    }

    /// Performs all runs.
    ///
    /// A failed run leaves a gap in its point, and its error is in the results.
    ///
    /// # Errors
    /// If the workload supports none of the numbers of CPUs, makes no such call in the first run, or has no bound.
    pub fn run(&self) -> Result<ScaleResults, String> {
        let counts = self.counts()?;
        let mut results = Results::default();
        let alone = self.bound.then(|| self.time_alone(&mut results)).transpose()?;
        if let (ShownFigure::Call(call), [policy, ..]) = (&self.show, &self.policies[..]) {
            let first = self.job(*policy, counts[0]);
            results.run("running", [first.clone()]);
            if let Ok(outcome) = results.get(&first)
                && self.show.of(outcome).is_none()
            {
                let made: Vec<_> = outcome.run.latencies.iter().map(|made| made.call).collect();
                return Err(format!(
                    "{} makes no call `{call}`{}; it makes {}",
                    self.workload.name(),
                    hint(call, made.iter().copied()),
                    made.join(", ")
                ));
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
                    .chain(alone.map(|alone| Some(flush_bound(&self.machine, alone, cpus))))
                    .collect(),
            })
            .collect();
        let metric = results.outcomes().next().map_or("", |outcome| outcome.measure.metric);
        Ok(ScaleResults { metric, points, results })
    }
}

/// Divides the values of each point by the first policy's.
pub(crate) fn relative(points: &[Point]) -> Vec<Point> {
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
pub(crate) fn plot(
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
        let bound = |cpus| flush_bound(&machine, 1000.0, cpus);
        let step = |cpus| bound(2 * cpus) - bound(cpus);
        assert_eq!(bound(1), 1000.0);
        for (cpus, transfer) in [(4, 33.5), (8, 33.5), (96, 113.0), (384, 113.0)] {
            assert!((step(cpus) - transfer).abs() < 1e-6, "{cpus}: {}", step(cpus));
        }
    }
}
