//! Measures the cost of guards beside the gain of the mechanisms that need them.
//!
//! A guard is a check, fence, wait or flush that makes a mechanism slower but correct. Each guard has a mutant that
//! omits it ([`quell_mutants::list`]). So its cost is measured in three runs of one workload on one machine: mechanism
//! off, mechanism on, and mechanism on without the guard. The first two runs show the gain of the mechanism, the last
//! two the cost of the guard. The last run may break the contract. Its violations are counted, but don't fail the run.
//!
//! Runs are short, and those of several CPUs depend on the order of arrival. So each run is repeated with several
//! seeds, and a cost is a mean with its extremes.
//!
//! # Omitted
//!
//! * Mutants that move work to another place save nothing. For example, they free frames before the flush instead of
//!   after it.
//! * Mutants that remove a mechanism's purpose (the flush, the request, the wait) are no guards.
//! * Some guards have no workload: locks that the manager needs without the mechanism, CPU hotplug, and changes of
//!   kernel mappings.

mod scenes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell::Policy;
use quell_clock::{Counts, MachineFile, built_in};
use quell_conformance::{PolicyText, parse_policy};
use quell_workloads::Workload;
use serde::Serialize;

use crate::jobs::{Job, Results};
use crate::workloads;
use scenes::{GUARDS, Guard};

/// An event, and the function that reads it from a machine's counts.
type Event = (&'static str, fn(&Counts) -> u64);

/// The events that explain a cost, most expensive first.
const EVENTS: [Event; 10] = [
    ("interrupts", |counts| counts.interrupts_taken),
    ("broadcasts", |counts| counts.broadcasts),
    ("fences", |counts| counts.fences),
    ("tag flushes", |counts| counts.invalidated_tags + counts.invalidated_all),
    ("page flushes", |counts| counts.invalidated_pages),
    ("faults", |counts| counts.faults),
    ("walks", |counts| counts.walks),
    ("waiting turns", |counts| counts.relaxes),
    ("line transfers", |counts| counts.transfers),
    ("shared words", |counts| counts.words),
];

/// The smallest differences per operation to report: for one seed, and for several, whose order of arrival differs.
const TOLD: [f64; 2] = [0.005, 0.01];
/// The most events in a row of the table.
const SHOWN: usize = 3;

/// The measured cost of a guard.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// The mechanism (S0 to S4) whose fast path the guard slows.
    pub mechanism: &'static str,
    /// A description of the guard's action.
    pub guard: &'static str,
    /// The names of the mutants that omit the guard.
    pub without: Vec<&'static str>,
    /// A description of the failure without the guard.
    pub hole: &'static str,
    /// The clause of the contract that the guard keeps.
    pub clause: &'static str,
    /// The workload.
    pub experiment: &'static str,
    /// The case of the workload.
    pub case: &'static str,
    /// The machine.
    pub machine: &'static str,
    /// The number of CPUs.
    pub cpus: usize,
    /// The workload's parameters.
    pub parameters: &'static [&'static str],
    /// The policy before the mechanism is added.
    pub policy_before: String,
    /// The policy with the mechanism.
    pub policy_after: String,
    /// The name of the workload's figure.
    pub metric: &'static str,
    /// The figure with the mechanism off.
    pub before: Option<f64>,
    /// The figure with the mechanism and the guard.
    pub shipped: Option<f64>,
    /// The figure with the mechanism, but without the guard.
    pub left_out: Option<f64>,
    /// The share of time that the mechanism saves with the guard in place. For example, 0.3 is 30 % less.
    pub gain: Option<f64>,
    /// The share of time that the guard adds. For example, 0.01 is 1 % more.
    pub cost: Option<f64>,
    /// The smallest and the greatest cost among the seeds.
    pub cost_range: Option<[f64; 2]>,
    /// The operation for which events are counted, for example `unmap`.
    pub each: &'static str,
    /// The number of additional events with the guard, for each such operation.
    pub events: BTreeMap<&'static str, f64>,
    /// The number of seeds.
    pub seeds: u64,
    /// The number of violations of the contract in the runs with all guards.
    pub violations: u64,
    /// The number of violations of the contract in the runs without the guard.
    pub violations_left_out: u64,
    /// The clauses that broke without the guard.
    pub broken: Vec<String>,
    /// The reason for missing figures, if some are missing.
    pub failed: Option<String>,
    /// The command that repeats the run without the guard.
    pub command: String,
}

/// A guard with its planned runs.
pub struct PlannedGuard {
    guard: &'static Guard,
    machine: Arc<MachineFile>,
    workload: Workload,
}

/// Plans the measurement of guards.
///
/// `only` is a mechanism or a workload whose guards to measure. `None` plans all guards.
pub fn plans(only: Option<&str>) -> Vec<PlannedGuard> {
    let asked = |guard: &&Guard| {
        only.is_none_or(|only| {
            only.eq_ignore_ascii_case(guard.scene.mechanism.name()) || only == guard.scene.workload
        })
    };
    GUARDS.iter().filter(asked).map(PlannedGuard::new).collect()
}

/// Performs the runs of the plans.
///
/// Adds runs with all guards to `results`, and returns the runs that omit a guard. Those may break the contract and
/// fail.
pub fn run(plans: &[PlannedGuard], results: &mut Results) -> Results {
    let three = |plan: &PlannedGuard| plan.seeds().map(|seed| plan.three(seed)).collect::<Vec<_>>();
    let jobs: Vec<_> = plans.iter().flat_map(three).collect();
    let kept = jobs.iter().flat_map(|[before, shipped, _]| [before, shipped]);
    results.run("the cost of the guards", kept.cloned());
    let mut left_out = Results::default();
    left_out.run("guards left out", jobs.into_iter().map(|[_, _, job]| job));
    left_out
}

impl PlannedGuard {
    /// Creates the plan of a guard.
    ///
    /// # Panics
    /// If the table contains an unknown name; a test reads all of it.
    fn new(guard: &'static Guard) -> PlannedGuard {
        let scene = guard.scene;
        PlannedGuard {
            guard,
            machine: Arc::new(built_in(scene.machine).expect("a machine of the table")),
            workload: workloads::known(scene.workload, scene.parameters),
        }
    }

    fn before(&self) -> Policy {
        parse_policy(self.guard.scene.before).expect("a policy of the table")
    }

    fn after(&self) -> Policy {
        self.before().with(self.guard.scene.mechanism)
    }

    fn job(&self, policy: Policy, seed: u64) -> Job {
        let cpus = self.guard.scene.cpus;
        Job { seed, ..Job::new(self.machine.clone(), self.workload, policy, cpus) }
    }

    /// Returns the runs before, with the mechanism, and with the guard omitted.
    fn three(&self, seed: u64) -> [Job; 3] {
        let shipped = self.job(self.after(), seed);
        let left_out = Job { without: self.guard.without, ..shipped.clone() };
        [self.job(self.before(), seed), shipped, left_out]
    }

    fn seeds(&self) -> impl Iterator<Item = u64> {
        1..=self.guard.scene.seeds
    }

    /// Builds the row of this guard from the results of its runs.
    pub fn row(&self, results: &Results, left_out: &Results) -> Row {
        let Guard { scene, without, what, hole, clause } = *self.guard;
        let without = without.to_vec();
        let mut row = Row {
            mechanism: scene.mechanism.name(),
            guard: what,
            hole,
            clause,
            experiment: scene.workload,
            case: scene.case,
            machine: scene.machine,
            cpus: scene.cpus,
            parameters: scene.parameters,
            policy_before: PolicyText(self.before()).to_string(),
            policy_after: PolicyText(self.after()).to_string(),
            each: scene.each.0,
            seeds: scene.seeds,
            command: self.command(&without),
            without,
            ..Row::default()
        };
        if let Err(failed) = self.fill(&mut row, results, left_out) {
            row.failed = Some(failed);
        }
        row
    }

    fn fill(&self, row: &mut Row, results: &Results, without: &Results) -> Result<(), String> {
        let (mut sums, mut times) = ([0.0; 3], [0.0; 3]);
        let mut range = [f64::INFINITY, f64::NEG_INFINITY];
        let mut counts = [Counts::default(); 2];
        let mut broken = BTreeSet::new();
        for seed in self.seeds() {
            let jobs = self.three(seed);
            let [before, shipped] = [&jobs[0], &jobs[1]].map(|job| results.get(job));
            for outcome in [before, shipped].into_iter().flatten() {
                row.violations += outcome.run.violation_count;
            }
            let outcomes = [before?, shipped?, without.get(&jobs[2])?];
            let figures = outcomes.map(|outcome| outcome.measure.value);
            if figures.iter().any(|figure| !(figure.is_finite() && *figure > 0.0)) {
                return Err("the run measured nothing".into());
            }
            let more_is_better = outcomes[1].measure.more_is_better;
            let time = figures.map(|figure| if more_is_better { 1.0 / figure } else { figure });
            for index in 0..3 {
                sums[index] += figures[index];
                times[index] += time[index];
            }
            let cost = time[1] / time[2] - 1.0;
            range = [range[0].min(cost), range[1].max(cost)];
            counts[0] += outcomes[1].machine;
            counts[1] += outcomes[2].machine;
            row.metric = outcomes[1].measure.metric;
            row.violations_left_out += outcomes[2].run.violation_count;
            let breaches = outcomes[2].run.violations.iter();
            broken.extend(breaches.map(|breach| breach.clause.to_string()));
        }
        let seeds = self.guard.scene.seeds as f64;
        [row.before, row.shipped, row.left_out] = sums.map(|sum| Some(sum / seeds));
        row.gain = Some(1.0 - times[1] / times[0]);
        row.cost = Some(times[1] / times[2] - 1.0);
        row.cost_range = Some(range);
        row.broken = broken.into_iter().collect();
        let operations = seeds * self.guard.scene.each.1 as f64;
        row.events = EVENTS
            .iter()
            .map(|(name, count)| {
                let [with, without] = counts.each_ref().map(|counts| count(counts) as f64);
                (*name, (with - without) / operations)
            })
            .collect();
        Ok(())
    }

    /// Returns the command that repeats the run without the guard.
    fn command(&self, without: &[&str]) -> String {
        let scene = self.guard.scene;
        let mut command = format!(
            "quell run {} --machine {} --cpus {} --policy {}",
            scene.workload,
            scene.machine,
            scene.cpus,
            PolicyText(self.after())
        );
        let parameters = scene.parameters.iter().map(|pair| (" --param ", *pair));
        let guards = without.iter().map(|guard| (" --without ", *guard));
        for (option, value) in parameters.chain(guards) {
            command.push_str(option);
            command.push_str(value);
        }
        command
    }
}

impl Row {
    /// Describes the events that the guard adds, for one operation.
    pub fn explained(&self) -> String {
        let told: Vec<String> = EVENTS
            .iter()
            .filter_map(|(name, _)| {
                let more = *self.events.get(name)?;
                (more >= TOLD[usize::from(self.seeds > 1)]).then(|| format!("{more:.2} {name}"))
            })
            .take(SHOWN)
            .collect();
        if told.is_empty() { "none".into() } else { format!("{} a {}", told.join(", "), self.each) }
    }

    /// Returns the cost in percent, with the extremes if there are several seeds.
    pub fn cost_text(&self) -> String {
        let percent = |share: f64| {
            // Avoid "-0.00".
            let rounded = (10_000.0 * share).round() / 100.0 + 0.0;
            format!("{rounded:+.2}")
        };
        match (self.cost, self.cost_range) {
            (Some(cost), Some([least, most])) if self.seeds > 1 => {
                format!("{} ({} to {})", percent(cost), percent(least), percent(most))
            }
            (Some(cost), _) => percent(cost),
            (None, _) => "-".into(),
        }
    }

    /// Returns the gain in percent of the time before.
    pub fn gain_text(&self) -> String {
        self.gain.map_or_else(|| "-".into(), |gain| format!("{:.1}", 100.0 * gain))
    }

    /// Returns the clauses that broke without the guard, each with its number of violations.
    pub fn broken_text(&self) -> String {
        match self.violations_left_out {
            0 => "0".into(),
            count => format!("{count} ({})", self.broken.join(", ")),
        }
    }
}
