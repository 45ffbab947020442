//! Predicts the time that each mechanism would save on this host.
//!
//! We run the workloads of the published systems on the machine in software. Its costs come from a machine file: for
//! example, that of this host, as `quell measure host` wrote it. Each workload runs once with the mechanisms of this
//! host's kernel, and once with one mechanism more. If the kernel has the mechanism already, the result is the time
//! that it saves now.
//!
//! These are predictions: we measured no figure here with the mechanism on this host. The assumptions are printed with
//! them.

pub mod kernel;
pub mod recorded;
pub mod replay;

use std::sync::Arc;

use anyhow::Result;
use quell::Mechanism;
use quell_clock::{MachineFile, Parameter};
use quell_conformance::PolicyText;
use quell_workloads::Workload;
use serde::Serialize;

use kernel::{Kernel, pair};
use quell_model::jobs::{Job, Results};

/// The default machine file: `quell measure host` writes it, and `quell predict` reads it.
pub const HOST_FILE: &str = "quell-host.toml";

/// A workload of a published system that tests its mechanism.
struct Case {
    mechanism: Mechanism,
    workload: &'static str,
    parameters: &'static [&'static str],
    what: &'static str,
    cpus: usize,
    /// Whether fewer CPUs do, too.
    or_fewer: bool,
    /// Dirty page-out, which x86 kernels do not batch.
    dirty: bool,
    /// Whether it needs two memory nodes.
    migrates: bool,
}

const CASE: Case = Case {
    mechanism: Mechanism::Batch,
    workload: "swap",
    parameters: &[],
    what: "",
    cpus: 1,
    or_fewer: false,
    dirty: false,
    migrates: false,
};

const CASES: &[Case] = &[
    Case { what: "page-out of dirty memory, alone", dirty: true, ..CASE },
    Case { what: "page-out of dirty memory, a thread spinning", cpus: 2, dirty: true, ..CASE },
    Case {
        workload: "migrate",
        what: "migration between nodes, a thread spinning",
        cpus: 2,
        migrates: true,
        ..CASE
    },
    Case {
        mechanism: Mechanism::Extents,
        workload: "demand",
        parameters: &["size=256M"],
        what: "demand faults, 2 MB pages",
        ..CASE
    },
    Case {
        mechanism: Mechanism::Extents,
        workload: "demand",
        parameters: &["size=2G", "page=1G"],
        what: "demand faults, 1 GB pages",
        ..CASE
    },
    Case {
        mechanism: Mechanism::Tags,
        workload: "pingpong",
        what: "ping-pong of two processes",
        ..CASE
    },
    Case {
        mechanism: Mechanism::Tags,
        workload: "pingpong",
        parameters: &["pages=512"],
        what: "ping-pong, 512 pages a turn",
        ..CASE
    },
    Case {
        mechanism: Mechanism::LazyUnmap,
        workload: "readers",
        parameters: &["processes=1", "threads=2", "slow=0", "compute=0"],
        what: "two threads stream a file larger than memory",
        cpus: 2,
        ..CASE
    },
    Case {
        mechanism: Mechanism::RemoteFlush,
        workload: "dontneed",
        what: "discard and touch, a thread spinning",
        cpus: 2,
        ..CASE
    },
    Case {
        mechanism: Mechanism::RemoteFlush,
        workload: "fileio",
        what: "mapped writes with syncs",
        cpus: 4,
        or_fewer: true,
        ..CASE
    },
];

fn by_name<S: serde::Serializer>(mechanism: &Mechanism, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(mechanism.name())
}

/// One line of the result.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The mechanism; in JSON by its name, S0 to S4.
    #[serde(serialize_with = "by_name")]
    pub mechanism: Mechanism,
    /// The workload that the mechanism is tested with.
    pub workload: &'static str,
    /// A description of the workload.
    pub what: &'static str,
    /// The number of CPUs.
    pub cpus: usize,
    /// The meaning of the figures.
    pub metric: Option<&'static str>,
    /// The kernel without the mechanism.
    pub without_policy: Option<String>,
    /// The figure without it.
    pub without: Option<f64>,
    /// The kernel with it.
    pub with_policy: Option<String>,
    /// The figure with it.
    pub with: Option<f64>,
    /// The time saved by the mechanism, in percent of the time without; negative if it costs time.
    pub saves_percent: Option<f64>,
    /// Whether the host's kernel has the mechanism, so that the saving is real already.
    pub in_kernel: bool,
    /// Shootdown interrupts without it.
    pub interrupts_without: Option<u64>,
    /// Shootdown interrupts with it.
    pub interrupts_with: Option<u64>,
    /// The reason why there is no prediction.
    pub refused: Option<String>,
}

impl Case {
    fn cpus(&self, machine: &MachineFile) -> usize {
        let most = if self.or_fewer { machine.count(Parameter::Cpus) } else { usize::MAX };
        self.cpus.min(most)
    }

    fn refusal(&self, machine: &MachineFile) -> Option<&'static str> {
        if self.cpus(machine) > machine.count(Parameter::Cpus) {
            return Some("the machine has one CPU, so there are no shootdowns");
        }
        let one_node = self.migrates && machine.count(Parameter::Nodes) < 2;
        one_node.then_some("the machine has one memory node, so no page migrates")
    }

    fn jobs(&self, machine: &Arc<MachineFile>, kernel: &Kernel) -> Result<(Job, Job, bool)> {
        let mut workload = Workload::from_name(self.workload)
            .ok_or_else(|| anyhow::anyhow!("no workload {}", self.workload))?;
        for pair in self.parameters {
            workload.set(pair)?;
        }
        let policy = if self.dirty { kernel.dirty } else { kernel.policy };
        let (without, with, in_kernel) = pair(policy, self.mechanism);
        let job = |policy| Job::new(machine.clone(), workload, policy, self.cpus(machine));
        Ok((job(without), job(with), in_kernel))
    }
}

/// The predictions for a machine.
#[derive(Debug, Serialize)]
pub struct Predictions {
    /// The machine's name.
    pub machine: String,
    /// The machine's title.
    pub title: String,
    /// The kernel's release.
    pub kernel: String,
    /// The kernel's policy.
    pub kernel_policy: String,
    /// The prediction for each workload, in the order of the mechanisms.
    #[serde(rename = "predictions")]
    pub lines: Vec<Line>,
    /// The assumptions in words.
    pub assumptions: Vec<String>,
    /// The number of broken contracts. If it isn't 0, don't trust any result here.
    pub violations: u64,
    /// Whether a run didn't end.
    #[serde(skip)]
    pub failed: bool,
}

/// Predicts the time that each mechanism would save on a machine with this kernel.
///
/// # Errors
/// If a workload refuses its parameters.
pub fn predict(machine: &Arc<MachineFile>, kernel: &Kernel) -> Result<Predictions> {
    let plan = |case: &'static Case| Ok((case, case.jobs(machine, kernel)?, case.refusal(machine)));
    let planned = CASES.iter().map(plan).collect::<Result<Vec<_>>>()?;
    let mut results = Results::default();
    let possible = planned.iter().filter(|(_, _, refusal)| refusal.is_none());
    let jobs = possible.flat_map(|(_, (without, with, _), _)| [without.clone(), with.clone()]);
    results.run("predicting", jobs);
    let lines =
        planned.iter().map(|(case, jobs, refusal)| line(case, machine, jobs, *refusal, &results));
    Ok(Predictions {
        machine: machine.name().into(),
        title: machine.title().into(),
        kernel: kernel.release.clone(),
        kernel_policy: PolicyText(kernel.policy).to_string(),
        lines: lines.collect(),
        assumptions: assumptions(machine, kernel),
        violations: results.violations(),
        failed: results.failures().next().is_some(),
    })
}

fn line(
    case: &Case,
    machine: &MachineFile,
    (without, with, in_kernel): &(Job, Job, bool),
    refusal: Option<&'static str>,
    results: &Results,
) -> Line {
    let outcomes = || Ok((results.get(without)?, results.get(with)?));
    let both = refusal.map_or_else(outcomes, Err);
    let known = both.as_ref().ok();
    let policy = |job: &Job| known.map(|_| PolicyText(job.policy).to_string());
    let saved = known.map(|(before, after)| {
        let (old, new) = (before.measure.value, after.measure.value);
        let time_ratio = if before.measure.more_is_better { old / new } else { new / old };
        (1.0 - time_ratio) * 100.0
    });
    Line {
        mechanism: case.mechanism,
        workload: case.workload,
        what: case.what,
        cpus: case.cpus(machine),
        metric: known.map(|(before, _)| before.measure.metric),
        without_policy: policy(without),
        without: known.map(|(before, _)| before.measure.value),
        with_policy: policy(with),
        with: known.map(|(_, after)| after.measure.value),
        saves_percent: saved,
        in_kernel: *in_kernel,
        interrupts_without: known.map(|(before, _)| before.machine.interrupts_taken),
        interrupts_with: known.map(|(_, after)| after.machine.interrupts_taken),
        refused: both.err().map(str::to_owned),
    }
}

fn assumptions(machine: &MachineFile, kernel: &Kernel) -> Vec<String> {
    let total = Parameter::ALL.len();
    let assumed = machine.assumed().count();
    let mut all = vec![
        format!(
            "the kernel ({}) follows the policy `{}`, or `{}` when it pages out dirty memory",
            kernel.release,
            PolicyText(kernel.policy),
            PolicyText(kernel.dirty)
        ),
        format!(
            "{assumed} of the machine's {total} figures are assumptions; the machine file names the source of each"
        ),
    ];
    all.extend(
        [
            Parameter::SystemCall,
            Parameter::Schedule,
            Parameter::InterruptDelivery,
            Parameter::GuestDelivery,
            Parameter::StringRate,
        ]
        .map(|parameter| {
            let value = machine.value(parameter);
            let guess = if value.assumed { "assumed" } else { "known" };
            format!(
                "{} = {} {} ({guess}: {})",
                parameter.name(),
                value.written,
                value.unit,
                value.source
            )
        }),
    );
    all.push("workloads are like the published ones, but with less memory and fewer rounds".into());
    all.push("other CPUs spin or do the same work; devices, locks of a real kernel and other programs are not modelled".into());
    all
}
