//! Runs the conformance suite's programs and the stress on a Linux: it must keep the contract, as far as programs can
//! see.
//!
//! There is one boot for each number of CPUs. The emulator's CPUs are threads of the host, so we count nothing, and
//! stale translations stay cached.

use super::compare::{MEMORY_MB, command_for, counted, initial_files};
use super::counted::BootCounters;
use super::protocol::{CONFORMANCE, Event, Handover, Job, STRESS};
use super::splats::{SHOWN, Splats};
use super::{guest, linux};
use crate::arch::Arch;
use crate::ending::end_requested;
use crate::follow;
use crate::qemu::{self, Accelerator, Machine};
use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// The options of the check.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The image of a Linux kernel for x86-64.
    pub kernel: PathBuf,
    /// An emulator other than QEMU of the system: its clock counts instructions, and its CPUs take turns. The machine of
    /// `quell hunt` needs that.
    pub emulator: Option<PathBuf>,
    /// The value of Linux's option `quell=`; `None` leaves it unset.
    pub mechanisms: Option<String>,
    /// Words to add to Linux's command line.
    pub words: Vec<String>,
    /// The numbers of CPUs.
    pub cpus: Vec<u16>,
    /// The number of rounds of the stress after the checks, of a thousand operations on each CPU.
    pub rounds: u64,
    /// The seed of the stress.
    pub seed: u64,
    /// The time that one boot may take before it's examined and ended.
    pub limit: Duration,
    /// Whether to show every line of the serial consoles, on standard error.
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

impl Programs {
    /// Boots, and runs every check. Passes each result to `report`.
    ///
    /// # Errors
    /// If something can't be built or started, or the machine didn't end by itself, for example because the kernel
    /// crashed.
    pub fn run(&self, mut report: impl FnMut(&Check)) -> anyhow::Result<CheckOutcomes> {
        let emulator = qemu::named(self.emulator.as_deref(), Arch::X86_64)?;
        let kernel = linux::find(Some(&self.kernel), None, false)?;
        let program = guest::build()?;
        let mut checked = CheckOutcomes::default();
        for &cpus in &self.cpus {
            let machine = Machine {
                arch: Arch::X86_64,
                cpus,
                memory_mb: MEMORY_MB,
                icount: self.emulator.is_some(),
                threads: self.emulator.is_none(),
                accelerator: Accelerator::Tcg,
            };
            let jobs = self.jobs(cpus);
            let (images, _file) = initial_files(&kernel, &program, &jobs)?;
            let mut words: Vec<String> = linux::WORDS.map(String::from).into();
            words.push(SHOWN.into());
            words.extend(self.mechanisms.iter().map(|on| format!("quell={on}")));
            words.extend(self.words.iter().cloned());
            let command = command_for(&emulator, &machine, &images, &words)?;
            let mut lacking = Vec::new();
            let mut splats = Splats::default();
            let outcome = follow::run(command, self.limit, |line| {
                if self.verbose {
                    match line {
                        follow::Line::Event(event) => remark!("  | {event}"),
                        follow::Line::Text(text) => remark!("  | {text}"),
                    }
                }
                let event = match line {
                    follow::Line::Event(event) => event,
                    follow::Line::Text(text) => return splats.line(text),
                };
                let (name, failures, saw) = match serde_json::from_value(event.clone()) {
                    Ok(Event::Checked { name, failures, saw, .. }) => (name, failures, saw),
                    Ok(Event::Failed { job, why }) => {
                        let job = jobs.get(job).map(|job| job.workload.clone());
                        (job.unwrap_or_default(), 1, why)
                    }
                    Ok(Event::Lacking { what, why }) => {
                        lacking.push(format!("{what}: {why}"));
                        return;
                    }
                    Ok(event) => {
                        let counted = BootCounters::of(&event).map(|counted| (cpus, counted));
                        checked.counted.extend(counted);
                        return;
                    }
                    // The judge of `quell hunt` prints it.
                    Err(_) if event["event"] == "finding" => ("hunt".into(), 1, event.to_string()),
                    Err(_) => return,
                };
                let check = Check { cpus, name, failures, saw };
                report(&check);
                checked.checks.push(check);
            })?;
            let splats = splats.take().into_iter().map(|splat| (cpus, splat));
            checked.splats.extend(splats);
            for what in lacking {
                remark!("Linux lacks {what}");
            }
            if end_requested().is_some() {
                bail!("ended by a signal");
            }
            if !outcome.passed() {
                let why = outcome.failure.as_deref().unwrap_or("it did not end");
                let on = counted(cpus);
                bail!("Linux on {on}: {why}\n{}", outcome.last_lines.join("\n"));
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
