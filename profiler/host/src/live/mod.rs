//! Measures the costs of translation coherence in the running kernel.
//!
//! There are three small benchmarks ([`mod@bench`]). Each is the micro-benchmark behind one of the published systems.
//! Beside it we measure the batched form that a program can use today.
//!
//! * We time rows ([`lab`]) in several rounds ([`rounds`], [`merge`]).
//! * We read the kernel's own counters around them ([`counters`]).
//! * We separate samples that a neighbour on the core disturbed from quiet ones ([`quell_threads::pulse`]).
//! * Destructors undo set-ups ([`guards`]).
//! * The price of one shootdown is the difference that one spinning thread makes ([`analysis`]).
//!
//! We check for each reason to mistrust a result, and report it. For example: a busy second CPU hides interrupts,
//! and page-out without swap pages nothing out.
//! `docs/measuring.md` has the whole list.
//!
//! The measurement doesn't cover other programs, and it doesn't attribute costs to them: counters are of the whole
//! machine.

mod analysis;
pub mod bench;
pub mod beside;
mod counters;
mod guards;
mod lab;
pub(crate) mod machine_file;
mod merge;
pub mod report;
mod rounds;
#[cfg(target_arch = "x86_64")]
mod tlb;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use quell_threads::cores;

use crate::memory::page_size;
use crate::process::{is_root, release};
use crate::processor::Processor;
use bench::ALL;
use lab::{Lab, Stop};
use report::{Benchmark, Comparison, Host, MachineFileOutcome, Report, Shootdown, Units};

/// The measurements, their directory, and the files to keep.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time for all benchmarks together. Set-up (files, devices) takes more.
    pub seconds: u64,
    /// The names of the benchmarks to run. An empty list means all.
    pub only: Vec<String>,
    /// The path for this host's machine file.
    pub machine_file: PathBuf,
    /// Whether to skip the machine file.
    pub no_machine_file: bool,
}

impl Options {
    /// Runs the benchmarks and returns all results.
    ///
    /// # Errors
    /// If the machine can't be examined at all, or a system call fails unexpectedly.
    pub fn measure(&self) -> anyhow::Result<Report> {
        let cpus = cores::allowed().context("asking which CPUs this process may use")?;
        let host = host(&cpus);
        let chosen: Vec<_> = ALL
            .iter()
            .filter(|b| self.only.is_empty() || self.only.iter().any(|n| n == b.name))
            .collect();
        let style = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {prefix}: {msg}")
            .context("progress style")?;
        let mut lab = Lab::new(
            Stop::on_signals().context("taking over the signals")?,
            cpus,
            ProgressBar::new(self.seconds * 10).with_style(style),
        );
        cores::pin(&lab.cpus[..1]).context("pinning the measuring thread")?;
        let (mut benchmarks, interrupted) =
            rounds::run(&mut lab, &chosen, Duration::from_secs(self.seconds));
        lab.progress.finish_and_clear();
        let shared_core = analysis::find_quiet(&mut benchmarks);
        let noise = analysis::host_noise(&benchmarks);
        let shootdown = benchmarks.iter().find(|b| b.name == "discard").and_then(|discard| {
            let row =
                |spinning| discard.rows.iter().find(|r| r.key == bench::one_page_key(spinning));
            Some(analysis::price(row(0)?, row(1)))
        });
        if let Some(ns) = shootdown.as_ref().and_then(|s| s.ns) {
            analysis::fill_shares(&mut benchmarks, ns);
        }
        let units = Units::find(&benchmarks);
        let (machine_file, predictions) = match &shootdown {
            Some(shootdown) if !interrupted => self.model(&host, &units, shootdown, &benchmarks),
            _ => (None, Vec::new()),
        };
        Ok(Report {
            schema: 3,
            host,
            benchmarks,
            shootdown,
            units,
            machine_file,
            predictions,
            shared_core,
            noise,
            interrupted,
            not_restored: guards::not_restored(),
        })
    }

    /// Makes and writes the machine file, then lets the model predict the other rows with it.
    fn model(
        &self,
        host: &Host,
        units: &Units,
        shootdown: &Shootdown,
        benchmarks: &[Benchmark],
    ) -> (Option<MachineFileOutcome>, Vec<Comparison>) {
        let refused = |note: String| MachineFileOutcome { path: None, note: Some(note) };
        let made = match machine_file::make(host, units, shootdown) {
            Ok(made) => made,
            Err(error) => return (Some(refused(format!("{error:#}"))), Vec::new()),
        };
        let predictions = beside::compare(benchmarks, &made);
        if self.no_machine_file {
            return (None, predictions);
        }
        let by_default = self.machine_file == Path::new(crate::predict::HOST_FILE);
        if by_default && !shootdown.reliable && self.machine_file.exists() {
            let note = format!(
                "{} is kept as it was, because this price is not reliable; name it with --machine-file to replace it",
                self.machine_file.display()
            );
            return (Some(refused(note)), predictions);
        }
        let written = match std::fs::write(&self.machine_file, &made.text) {
            Ok(()) => MachineFileOutcome {
                path: Some(self.machine_file.display().to_string()),
                note: made.note,
            },
            Err(error) => refused(format!(
                "{}: {error}; name another place with --machine-file",
                self.machine_file.display()
            )),
        };
        (Some(written), predictions)
    }
}

fn host(cpus: &[usize]) -> Host {
    let processor = Processor::of_this_host();
    Host {
        kernel: release(),
        arch: std::env::consts::ARCH,
        guest: (processor.flags.is_some()).then(|| processor.has("hypervisor")),
        cpus: cpus.to_vec(),
        page_bytes: page_size(),
        flags: ["pcid", "invpcid", "invlpgb"]
            .into_iter()
            .filter(|flag| processor.has(flag))
            .map(str::to_owned)
            .collect(),
        root: is_root(),
        cpu_model: processor.model,
    }
}
