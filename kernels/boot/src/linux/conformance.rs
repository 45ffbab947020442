//! Runs the conformance suite's programs and the stress on a Linux: it must keep the contract, as far as programs can
//! see.
//!
//! There is one boot for each number of CPUs. The emulator's CPUs are threads of the host, so we count nothing, and
//! stale translations stay cached.

use super::Flavour;
use super::checks::{Boot, BootCounters, SHOWN};
use crate::versus::compare::MEMORY_MB;
use crate::versus::linux;
use crate::versus::protocol::{CONFORMANCE, Event, Handover, Job, STRESS};
use clap::{Args, value_parser};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The arguments of `kernels/linux/run conformance`.
#[derive(Args, Clone, Debug)]
pub struct Conformance {
    /// Which kernel
    pub kernel: Flavour,
    /// Numbers of CPUs, one boot for each
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8",
          value_parser = value_parser!(u16).range(1..=64))]
    pub cpus: Vec<u16>,
    /// The engine's mechanisms: all, off, or some of batch, extents, tags, lazy and remote, separated by commas
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub mechanisms: String,
    /// Rounds of random operations after the checks, of a thousand operations on each CPU
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub rounds: u64,
    /// The seed of the random operations, the same on every host
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Leave out this rule of the engine, by the name of its mutant; the programs must notice. Of the kernel `debug`
    #[arg(long, value_name = "RULE")]
    pub forget: Option<String>,
    /// Boot in this emulator, which counts instructions, and lets one CPU run at a time. For example, in the machine of
    /// `quell hunt`: QUELL_HUNT='1 9 1 1 0-0 0 0 0' (seed, how aggressive, findings, lazy unmap, hold, NMIs, entries,
    /// boot) and the path that `quell hunt --setup` prints
    #[arg(long, value_name = "FILE")]
    pub emulator: Option<PathBuf>,
    /// How many minutes a boot may take
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub minutes: u64,
    /// Show every line of the serial console
    #[arg(long)]
    pub verbose: bool,
}

/// The result of a check.
#[derive(Clone, Debug)]
pub struct Check {
    /// The number of CPUs of the machine.
    pub cpus: u16,
    /// The check's name.
    pub name: String,
    /// The number of CPUs on which it failed.
    pub failures: u64,
    /// The finding, or the work done.
    pub saw: String,
}

/// The results of every boot.
#[derive(Clone, Debug, Default)]
pub struct CheckOutcomes {
    /// Every check of every boot.
    pub checks: Vec<Check>,
    /// The counts of each boot, with the number of CPUs; empty if the engine is off.
    pub counted: Vec<(u16, BootCounters)>,
    /// Linux's complaints in each boot, with the number of CPUs. Each entry contains the lines of one complaint.
    pub splats: Vec<(u16, Vec<String>)>,
}

impl Conformance {
    /// Runs and prints the checks. Returns whether all passed.
    pub(super) fn run(self) -> anyhow::Result<bool> {
        let checked = self.checks(|check| {
            let (cpus, name, saw) = (check.cpus, &check.name, &check.saw);
            match (check.failures, saw.as_str()) {
                (0, "") => println!("{cpus} CPUs  ok      {name}"),
                (0, done) => println!("{cpus} CPUs  ok      {name}: {done}"),
                (failures, saw) => println!("{cpus} CPUs  FAILED  {name}, on {failures}: {saw}"),
            }
        })?;
        let mut failed = checked.checks.iter().filter(|check| check.failures > 0).count();
        println!("{} checks, {failed} failed", checked.checks.len());
        for (cpus, splat) in &checked.splats {
            println!("{cpus} CPUs  FAILED  Linux reported:");
            splat.iter().for_each(|line| println!("    {line}"));
            failed += 1;
        }
        for (cpus, counted) in &checked.counted {
            println!("{cpus} CPUs  {counted}");
            if let Err(why) = counted.agree() {
                println!("{cpus} CPUs  FAILED  {why}");
                failed += 1;
            }
        }
        Ok(failed == 0)
    }

    /// Boots, and runs every check. Passes each result to `report`.
    ///
    /// # Errors
    /// If something can't be built or started, or the machine didn't end by itself, for example because the kernel
    /// crashed.
    pub fn checks(&self, mut report: impl FnMut(&Check)) -> anyhow::Result<CheckOutcomes> {
        let mechanisms = self.kernel.has_engine().then(|| format!("quell={}", self.mechanisms));
        let forget = self.kernel.forget(self.forget.as_deref())?;
        let kernel = linux::find(Some(&self.kernel.built()?), None, false)?;
        let program = linux::guest()?;
        let mut checked = CheckOutcomes::default();
        for &cpus in &self.cpus {
            let words = linux::WORDS.into_iter().chain([SHOWN]).map(String::from);
            let words = words.chain(mechanisms.clone()).chain(forget.clone());
            let boot = Boot {
                kernel: &kernel,
                emulator: self.emulator.as_deref(),
                cpus,
                memory_mb: MEMORY_MB,
                icount: self.emulator.is_some(),
                words: words.collect(),
                limit: Duration::from_secs(60 * self.minutes),
                verbose: self.verbose,
            };
            let jobs = self.jobs(cpus);
            let archive = linux::initial_files(&kernel, &program, &jobs, &[], &BTreeMap::new())?;
            let (outcome, mut splats, counted) = boot.follow(&archive, |event, _| {
                let (name, failures, saw) = match event {
                    Ok(Event::Checked { name, failures, saw, .. }) => (name, failures, saw),
                    Ok(Event::Failed { job, why }) => {
                        let job = jobs.get(job).map(|job| job.workload.clone());
                        (job.unwrap_or_default(), 1, why)
                    }
                    // The judge of `quell hunt` prints it.
                    Err(event) if event["event"] == "finding" => {
                        ("hunt".into(), 1, event.to_string())
                    }
                    Ok(_) | Err(_) => return,
                };
                let check = Check { cpus, name, failures, saw };
                report(&check);
                checked.checks.push(check);
            })?;
            checked.splats.extend(splats.take().into_iter().map(|splat| (cpus, splat)));
            checked.counted.extend(counted.map(|counted| (cpus, counted)));
            if !outcome.passed() {
                return Err(boot.failed(&outcome));
            }
        }
        Ok(checked)
    }

    fn jobs(&self, cpus: u16) -> Vec<Job> {
        let job = |workload: &str, parameters| Job {
            workload: workload.into(),
            file: None,
            parameters,
            team: cpus.into(),
            handover: Handover::default(),
            traced: false,
        };
        let mut jobs = vec![job(CONFORMANCE, Vec::new())];
        if self.rounds > 0 {
            let (rounds, seed) = (self.rounds, self.seed);
            let parameters = vec![format!("rounds={rounds}"), format!("seed={seed}")];
            jobs.push(job(STRESS, parameters));
        }
        jobs
    }
}
