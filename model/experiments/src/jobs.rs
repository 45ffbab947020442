//! Runs many trials on all cores of the host.
//!
//! Equal trials run once, and the progress is shown.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::channel;

use quell::Policy;
use quell_clock::{MachineFile, Progress};
use quell_workloads::Workload;
use rayon::prelude::*;

use crate::policies::PolicyChoice;
use crate::progress::{self, ProgressLine};
use crate::trial::{Outcome, Trial, TrialError};

/// A trial that owns its inputs, so that any thread can run it.
#[derive(Clone, Debug)]
pub struct Job {
    /// The machine.
    pub machine: Arc<MachineFile>,
    /// A name that distinguishes a changed machine from the unchanged machine file.
    pub variant: String,
    /// The workload.
    pub workload: Workload,
    /// The mechanisms that are on.
    pub policy: Policy,
    /// The number of CPUs.
    pub cpus: usize,
    /// The number of events to trace; 0 for no trace.
    pub trace: usize,
    /// Whether to record which cache lines move.
    pub lines: bool,
    /// The seed of all random choices.
    pub seed: u64,
    /// The guards to omit, by the names of their mutants.
    pub without: &'static [&'static str],
}

/// The seed of the experiments.
///
/// Any other seed would do as well, and the results are equal on every host.
pub const SEED: u64 = 1;

impl Job {
    /// Creates a run on an unchanged machine with all guards and without a trace.
    pub fn new(
        machine: Arc<MachineFile>,
        workload: Workload,
        policy: impl Into<PolicyChoice>,
        cpus: usize,
    ) -> Self {
        let policy: PolicyChoice = policy.into();
        Job {
            machine: match policy.file {
                Some(file) => Arc::new(machine.with_policy(file)),
                None => machine,
            },
            variant: String::new(),
            workload,
            policy: policy.mechanisms,
            cpus,
            trace: 0,
            lines: false,
            seed: SEED,
            without: &[],
        }
    }

    /// Returns a key that is equal for trials with the same result.
    pub(crate) fn key(&self) -> String {
        format!(
            "{}/{}/{}/{}/{:?}/{:?}/{}/{}/{}/{}/{:?}",
            self.machine.name(),
            self.machine.kernel(),
            self.machine.policy(),
            self.variant,
            self.workload,
            self.policy,
            self.cpus,
            self.trace,
            self.lines,
            self.seed,
            self.without
        )
    }

    /// Returns the trial. It doesn't omit the guards that [`Job::without`] names.
    pub fn trial(&self) -> Trial<'_> {
        Trial {
            machine: &self.machine,
            workload: self.workload,
            policy: self.policy,
            cpus: self.cpus,
            seed: self.seed,
            trace: self.trace,
        }
    }

    /// Runs the trial.
    pub(crate) fn run(&self, progress: &Progress) -> Result<Outcome, TrialError> {
        self.trial().run_watched(self.without, progress, self.lines)
    }
}

/// Calls a function when dropped.
struct DropGuard<F: FnMut()>(F);

impl<F: FnMut()> Drop for DropGuard<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The results of many jobs.
#[derive(Default)]
pub struct Results {
    by_key: HashMap<String, Result<Outcome, String>>,
}

impl Results {
    /// Runs the jobs that have no result yet, and [shows](progress::show) the progress.
    pub fn run(&mut self, what: &'static str, jobs: impl IntoIterator<Item = Job>) {
        self.run_groups(what, [jobs], |_| ());
    }

    /// Runs groups of jobs, one group after the other. Calls `each` after each job.
    pub fn run_groups(
        &mut self,
        what: &'static str,
        groups: impl IntoIterator<Item = impl IntoIterator<Item = Job>>,
        mut each: impl FnMut(&Self),
    ) {
        let mut known: HashSet<String> = self.by_key.keys().cloned().collect();
        let mut new = Vec::new();
        for (group, jobs) in groups.into_iter().enumerate() {
            for job in jobs {
                let key = job.key();
                if known.insert(key.clone()) {
                    new.push((group, key, job, Progress::new()));
                }
            }
        }
        // Within a group the longest run starts first, so that no core waits for one of them at the end.
        new.sort_by_key(|(group, _, job, _)| (*group, std::cmp::Reverse(job.cpus)));
        let ended = AtomicUsize::new(0);
        let look = || {
            let runs = new.iter().map(|(_, _, job, progress)| (job.cpus, progress));
            ProgressLine::of_runs(runs, ended.load(Relaxed))
        };
        let given_up = AtomicBool::new(false);
        let run = |(_, key, job, progress): &(usize, String, Job, Progress)| {
            if given_up.load(Relaxed) {
                return None;
            }
            let outcome = job.run(progress).map_err(|error| error.to_string());
            progress.end();
            ended.fetch_add(1, Relaxed);
            Some((key.clone(), outcome))
        };
        progress::show(what, look, || {
            std::thread::scope(|scope| {
                let (over, done) = channel();
                let jobs = &new;
                scope.spawn(move || {
                    let jobs = jobs.iter().par_bridge();
                    jobs.filter_map(run).for_each_with(over, |over, result| {
                        // If `each` has panicked, no thread waits for the result any more.
                        let _ = over.send(result);
                    });
                });
                let _given_up = DropGuard(|| given_up.store(true, Relaxed));
                for (key, outcome) in done {
                    self.by_key.insert(key, outcome);
                    each(self);
                }
            });
        });
    }

    /// Returns whether a job has run, successfully or not.
    pub fn has(&self, job: &Job) -> bool {
        self.by_key.contains_key(&job.key())
    }

    /// Returns the outcome of a job.
    ///
    /// # Errors
    /// The job's error, or a message that it did not run.
    pub fn get(&self, job: &Job) -> Result<&Outcome, &str> {
        match self.by_key.get(&job.key()) {
            Some(outcome) => outcome.as_ref().map_err(String::as_str),
            None => Err("was not run"),
        }
    }

    /// Returns the number of violations of the contract in all runs.
    pub fn violations(&self) -> u64 {
        self.outcomes().map(|outcome| outcome.violations).sum()
    }

    /// Returns the outcomes of all runs that ended.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.by_key.values().filter_map(|outcome| outcome.as_ref().ok())
    }

    /// Returns the errors of failed jobs.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.by_key.values().filter_map(|outcome| outcome.as_ref().err()).map(String::as_str)
    }
}

/// Returns the simulated accesses per second of a core of the host.
pub fn accesses_per_second<'o>(outcomes: impl Iterator<Item = &'o Outcome>) -> f64 {
    let (accesses, seconds) = outcomes.fold((0.0, 0.0), |(accesses, seconds), outcome| {
        (
            accesses + outcome.accesses_per_second * outcome.host_seconds,
            seconds + outcome.host_seconds,
        )
    });
    accesses / f64::max(seconds, 1e-9)
}
