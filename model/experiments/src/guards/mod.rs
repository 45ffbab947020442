//! What the guards cost: the work on fast paths that closes holes, beside what the mechanisms gain.
//!
//! A guard is a look, a fence, a wait or a flush without which a mechanism would be faster and the
//! contract would not hold. Each has a mutant ([`quell_mutants::list`]) that leaves it out, so its cost is measured
//! and not estimated: the same workload on the same machine with the mechanism off, with it on, and with
//! it on but the guard left out. The first two give the gain, the last two the cost. In the last the
//! contract may break; how often is counted, and is no failure.
//!
//! Runs are short, and those of several CPUs depend on which comes first. So they are run with several
//! seeds, and the costs are a mean with its extremes.
//!
//! # What is not here
//!
//! Mutants that put the same work at another place (the clock read after the flush, a space published
//! after its root was loaded, frames freed before the flush) cost nothing and save nothing; mutants that
//! take away what a mechanism is for (the flush, the post, the wait) are no guards. Guards that no
//! workload comes to have no row either: locks that the manager needs without the mechanism, CPUs that go offline, and
//! changes of the kernel's own mappings.

mod scenes;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell::Policy;
use quell_clock::{Counts, MachineFile, built_in};
use quell_workloads::Workload;
use serde::Serialize;

use crate::jobs::{Job, Results};
use scenes::{GUARDS, Guard};

/// An event, and how a machine's counts give it.
type Event = (&'static str, fn(&Counts) -> u64);

/// The events that explain a cost, those that cost most first.
const EVENTS: [Event; 10] = [
    ("interrupts", |counts| counts.interrupts_taken),
    ("broadcasts", |counts| counts.broadcasts),
    ("fences", |counts| counts.fences),
    ("tag flushes", |counts| {
        counts.invalidated_tags + counts.invalidated_all
    }),
    ("page flushes", |counts| counts.invalidated_pages),
    ("faults", |counts| counts.faults),
    ("walks", |counts| counts.walks),
    ("waiting turns", |counts| counts.relaxes),
    ("line transfers", |counts| counts.transfers),
    ("shared words", |counts| counts.words),
];

/// Differences below this, for one operation, are not told; nor, of several seeds, those below the
/// second, which are due to which CPU came first.
const TOLD: [f64; 2] = [0.005, 0.01];
/// How many events the table tells.
const SHOWN: usize = 3;

/// What a guard costs.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// S0 to S4: the mechanism in whose fast path it is.
    pub mechanism: &'static str,
    /// What the guard does.
    pub guard: &'static str,
    /// The mutants that leave it out.
    pub without: Vec<&'static str>,
    /// What would go wrong without it.
    pub hole: &'static str,
    /// The clause of the contract that it keeps.
    pub clause: &'static str,
    /// The workload.
    pub experiment: &'static str,
    /// Which case of it.
    pub case: &'static str,
    /// The machine.
    pub machine: &'static str,
    /// How many CPUs.
    pub cpus: usize,
    /// The workload's parameters.
    pub parameters: &'static [&'static str],
    /// The mechanisms without the one whose gain is given.
    pub policy_before: String,
    /// With it.
    pub policy_after: String,
    /// The workload's figure: what it says.
    pub metric: &'static str,
    /// With the mechanism off.
    pub before: Option<f64>,
    /// With it on: what is shipped.
    pub shipped: Option<f64>,
    /// With it on and the guard left out.
    pub left_out: Option<f64>,
    /// How much less time the mechanism takes with the guard in its place: 0.3 is 30 % less.
    pub gain: Option<f64>,
    /// How much more time with the guard than without: 0.01 is 1 % more.
    pub cost: Option<f64>,
    /// The least and the greatest cost of the seeds.
    pub cost_range: Option<[f64; 2]>,
    /// What happens so often that events are given for one of it.
    pub each: &'static str,
    /// How many more events with the guard than without, for each such operation.
    pub events: BTreeMap<&'static str, f64>,
    /// How many seeds were run.
    pub seeds: u64,
    /// Breaches of the contract with the mechanism on and off, all guards in their places.
    pub violations: u64,
    /// Breaches of the contract with the guard left out.
    pub violations_left_out: u64,
    /// The clauses that those broke.
    pub broken: Vec<String>,
    /// Why figures are missing, if some are.
    pub failed: Option<String>,
    /// What shows the run with the guard left out.
    pub command: String,
}

/// A guard whose runs are planned.
pub struct PlannedGuard {
    guard: &'static Guard,
    machine: Arc<MachineFile>,
    workload: Workload,
}

/// The plans of all guards that `only`, a mechanism or a workload, asks for.
pub fn plans(only: Option<&str>) -> Vec<PlannedGuard> {
    let asked = |guard: &&Guard| {
        only.is_none_or(|only| {
            only.eq_ignore_ascii_case(guard.scene.mechanism.name()) || only == guard.scene.workload
        })
    };
    GUARDS.iter().filter(asked).map(PlannedGuard::new).collect()
}

/// Runs what the plans need: with all guards into `results`, without one into those returned, because
/// there the contract may break and a run may come to no end.
pub fn run(plans: &[PlannedGuard], results: &mut Results) -> Results {
    let three = |plan: &PlannedGuard| {
        plan.seeds()
            .map(|seed| plan.three(seed))
            .collect::<Vec<_>>()
    };
    let jobs: Vec<_> = plans.iter().flat_map(three).collect();
    let kept = jobs
        .iter()
        .flat_map(|[before, shipped, _]| [before, shipped]);
    results.run("what the guards cost", kept.cloned());
    let mut left_out = Results::default();
    left_out.run("guards left out", jobs.into_iter().map(|[_, _, job]| job));
    left_out
}

impl PlannedGuard {
    /// # Panics
    /// If the table names what does not exist; a test reads all of it.
    fn new(guard: &'static Guard) -> PlannedGuard {
        let scene = guard.scene;
        let mut workload = Workload::from_name(scene.workload).expect("a workload of the table");
        for pair in scene.parameters {
            workload.set(pair).expect("a parameter of the table");
        }
        PlannedGuard {
            guard,
            machine: Arc::new(built_in(scene.machine).expect("a machine of the table")),
            workload,
        }
    }

    fn before(&self) -> Policy {
        self.guard
            .scene
            .before
            .parse()
            .expect("a policy of the table")
    }

    fn after(&self) -> Policy {
        self.before().with(self.guard.scene.mechanism)
    }

    fn job(&self, policy: Policy, seed: u64) -> Job {
        let cpus = self.guard.scene.cpus;
        Job {
            seed,
            ..Job::new(self.machine.clone(), self.workload, policy, cpus)
        }
    }

    /// Before, shipped and with the guard left out.
    fn three(&self, seed: u64) -> [Job; 3] {
        let shipped = self.job(self.after(), seed);
        let left_out = Job {
            without: self.guard.without,
            ..shipped.clone()
        };
        [self.job(self.before(), seed), shipped, left_out]
    }

    fn seeds(&self) -> impl Iterator<Item = u64> {
        1..=self.guard.scene.seeds
    }

    /// What came of the runs.
    pub fn row(&self, results: &Results, left_out: &Results) -> Row {
        let Guard {
            scene,
            without,
            what,
            hole,
            clause,
        } = *self.guard;
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
            policy_before: self.before().to_string(),
            policy_after: self.after().to_string(),
            metric: "",
            before: None,
            shipped: None,
            left_out: None,
            gain: None,
            cost: None,
            cost_range: None,
            each: scene.each.0,
            events: BTreeMap::new(),
            seeds: scene.seeds,
            violations: 0,
            violations_left_out: 0,
            broken: Vec::new(),
            failed: None,
            command: self.command(&without),
            without,
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
                row.violations += outcome.violations;
            }
            let outcomes = [before?, shipped?, without.get(&jobs[2])?];
            let figures = outcomes.map(|outcome| outcome.measure.value);
            if figures
                .iter()
                .any(|figure| !(figure.is_finite() && *figure > 0.0))
            {
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
            row.violations_left_out += outcomes[2].violations;
            broken.extend(outcomes[2].breaches.iter().filter_map(|breach| {
                let (clause, _) = breach.split_once(':')?;
                Some(clause.to_owned())
            }));
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

    /// What a person types to see the run with the guard left out.
    fn command(&self, without: &[&str]) -> String {
        let scene = self.guard.scene;
        let mut command = format!(
            "quell run {} --machine {} --cpus {} --policy {}",
            scene.workload,
            scene.machine,
            scene.cpus,
            self.after()
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
    /// The events that the guard adds, in words, for one operation.
    pub fn explained(&self) -> String {
        let told: Vec<String> = EVENTS
            .iter()
            .filter_map(|(name, _)| {
                let more = *self.events.get(name)?;
                (more >= TOLD[usize::from(self.seeds > 1)]).then(|| format!("{more:.2} {name}"))
            })
            .take(SHOWN)
            .collect();
        if told.is_empty() {
            "none".into()
        } else {
            format!("{} a {}", told.join(", "), self.each)
        }
    }

    /// The cost in percent, with the extremes if there are several seeds.
    pub fn cost_text(&self) -> String {
        let percent = |share: f64| {
            // Not "-0.00".
            let rounded = (10_000.0 * share).round() / 100.0 + 0.0;
            format!("{rounded:+.2}")
        };
        match (self.cost, self.cost_range) {
            (Some(cost), Some([least, most])) if self.seeds > 1 => {
                format!(
                    "{} ({} to {})",
                    percent(cost),
                    percent(least),
                    percent(most)
                )
            }
            (Some(cost), _) => percent(cost),
            (None, _) => "-".into(),
        }
    }

    /// The gain in percent of the time before.
    pub fn gain_text(&self) -> String {
        self.gain
            .map_or_else(|| "-".into(), |gain| format!("{:.1}", 100.0 * gain))
    }

    /// How often which clause broke with the guard left out.
    pub fn broken_text(&self) -> String {
        match self.violations_left_out {
            0 => "0".into(),
            count => format!("{count} ({})", self.broken.join(", ")),
        }
    }
}
