//! Runs many trials on all cores of the host.
//!
//! Equal trials run once, and the progress is shown.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use quell::Policy;
use quell_clock::{MachineFile, Progress};
use quell_workloads::Workload;
use rayon::prelude::*;

use crate::policies::PolicyChoice;
use crate::progress::{self, ProgressLine};
use crate::trial::Outcome;

/// The inputs of one run, which any thread can make.
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
}

/// Does the work of each item on all cores of the host, in this order, and [shows](progress::show) the progress.
///
/// `cpus` returns an item's number of CPUs, with which its work grows. After `stop` is set, no further item begins.
pub(crate) fn in_order<T: Sync>(
    what: &str,
    items: &[T],
    cpus: impl Fn(&T) -> usize + Sync,
    stop: &AtomicBool,
    work: impl Fn(usize, &T, &Progress) + Sync,
) {
    let runs: Vec<Progress> = items.iter().map(|_| Progress::new()).collect();
    let ended = AtomicUsize::new(0);
    let look = || {
        let (mut all, mut done) = (0, 0.0);
        for (item, progress) in items.iter().zip(&runs) {
            all += cpus(item);
            done += cpus(item) as f64 * progress.share();
        }
        ProgressLine {
            share: done / all.max(1) as f64,
            said: format!("{} of {} runs", ended.load(Relaxed), items.len()),
        }
    };
    progress::show(what, look, || {
        // The parallel iterator takes an item whenever a thread is free.
        items.iter().zip(&runs).enumerate().par_bridge().for_each(|(index, (item, progress))| {
            if !stop.load(Relaxed) {
                work(index, item, progress);
                progress.end();
                ended.fetch_add(1, Relaxed);
            }
        });
    });
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
        each: impl FnMut(&Self) + Send,
    ) {
        let mut known: HashSet<String> = self.by_key.keys().cloned().collect();
        let mut new = Vec::new();
        for (group, jobs) in groups.into_iter().enumerate() {
            for job in jobs {
                let key = job.key();
                if known.insert(key.clone()) {
                    new.push((group, key, job));
                }
            }
        }
        // Within a group the longest run starts first, so that no core waits for one of them at the end.
        new.sort_by_key(|(group, _, job)| (*group, std::cmp::Reverse(job.cpus)));
        let shared = Mutex::new((self, each));
        in_order(
            what,
            &new,
            |(.., job)| job.cpus,
            &AtomicBool::new(false),
            |_, (_, key, job), progress| {
                // If `each` has panicked, nobody wants the other results.
                if shared.is_poisoned() {
                    return;
                }
                let outcome = job.run_watched(progress).map_err(|error| error.to_string());
                if let Ok(mut shared) = shared.lock() {
                    let (results, each) = &mut *shared;
                    results.by_key.insert(key.clone(), outcome);
                    each(results);
                }
            },
        );
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
        self.outcomes().map(|outcome| outcome.run.violation_count).sum()
    }

    /// Returns the number of violations of the contract in the runs of these jobs.
    pub(crate) fn violations_of<'j>(&self, jobs: impl IntoIterator<Item = &'j Job>) -> u64 {
        let outcomes = jobs.into_iter().filter_map(|job| self.get(job).ok());
        outcomes.map(|outcome| outcome.run.violation_count).sum()
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
    let (accesses, seconds) = outcomes.fold((0, 0.0), |(accesses, seconds), outcome| {
        (accesses + outcome.run.counts().accesses, seconds + outcome.run.host_seconds)
    });
    accesses as f64 / f64::max(seconds, 1e-9)
}
