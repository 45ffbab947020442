//! Many trials at once: on all cores of the host, each different trial once, with progress.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use quell::{Policy, Rule};
use quell_clock::MachineFile;
use quell_workloads::Workload;
use rayon::prelude::*;

use crate::trial::{Outcome, Trial, TrialError};

/// A trial that owns what it needs.
#[derive(Clone, Debug)]
pub struct Job {
    /// On which machine.
    pub machine: Arc<MachineFile>,
    /// What distinguishes the machine from the file of its name, if it was changed.
    pub variant: String,
    /// What.
    pub workload: Workload,
    /// With which mechanisms.
    pub policy: Policy,
    /// On how many CPUs.
    pub cpus: usize,
    /// How many events to trace.
    pub trace: usize,
    /// What decides everything random.
    pub seed: u64,
    /// The guards that are left out.
    pub without: &'static [&'static Rule],
}

/// The seed of the experiments: one run is as good as another, and equal on every host.
pub const SEED: u64 = 1;

impl Job {
    /// A run on a machine as its file says, with every guard in its place and without a trace.
    pub fn new(machine: Arc<MachineFile>, workload: Workload, policy: Policy, cpus: usize) -> Self {
        Job {
            machine,
            variant: String::new(),
            workload,
            policy,
            cpus,
            trace: 0,
            seed: SEED,
            without: &[],
        }
    }

    /// Equal for trials that give the same result.
    fn key(&self) -> String {
        format!(
            "{}/{}/{:?}/{}/{}/{}/{}/{:?}",
            self.machine.name(),
            self.variant,
            self.workload,
            self.policy,
            self.cpus,
            self.trace,
            self.seed,
            self.without
        )
    }

    fn run(&self) -> Result<Outcome, TrialError> {
        Trial {
            machine: &self.machine,
            workload: self.workload,
            policy: self.policy,
            cpus: self.cpus,
            seed: self.seed,
            trace: self.trace,
        }
        .run_without(self.without)
    }
}

/// What came of many jobs.
#[derive(Default)]
pub struct Results {
    by_key: HashMap<String, Result<Outcome, String>>,
}

impl Results {
    /// Runs what is not known yet. With a terminal on standard error, a bar shows how far it is.
    pub fn run(&mut self, what: &'static str, jobs: impl IntoIterator<Item = Job>) {
        let mut new = HashMap::new();
        for job in jobs {
            let key = job.key();
            if !self.by_key.contains_key(&key) {
                new.insert(key, job);
            }
        }
        let bar = ProgressBar::new(new.len() as u64)
            .with_message(what)
            .with_style(
                ProgressStyle::with_template("{msg:32} {wide_bar} {pos}/{len} {elapsed}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
        bar.enable_steady_tick(Duration::from_millis(200));
        // The longest first, so that no core waits for one of them at the end.
        let mut new: Vec<_> = new.into_iter().collect();
        new.sort_by_key(|(_, job)| std::cmp::Reverse(job.cpus));
        let done: Vec<_> = new
            .into_par_iter()
            .with_max_len(1)
            .map(|(key, job)| {
                let outcome = job.run().map_err(|error| error.to_string());
                bar.inc(1);
                (key, outcome)
            })
            .collect();
        bar.finish_and_clear();
        self.by_key.extend(done);
    }

    /// What came of a job that was run.
    ///
    /// # Errors
    /// What went wrong with it, or that it was not run.
    pub fn get(&self, job: &Job) -> Result<&Outcome, &str> {
        match self.by_key.get(&job.key()) {
            Some(outcome) => outcome.as_ref().map_err(String::as_str),
            None => Err("was not run"),
        }
    }

    /// Breaches of the contract in all runs.
    pub fn violations(&self) -> u64 {
        self.outcomes().map(|outcome| outcome.violations).sum()
    }

    /// Everything that came to an end.
    pub fn outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.by_key
            .values()
            .filter_map(|outcome| outcome.as_ref().ok())
    }

    /// What went wrong, if something did.
    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.by_key
            .values()
            .filter_map(|outcome| outcome.as_ref().err())
            .map(String::as_str)
    }
}
