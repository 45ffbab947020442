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
    cpus: Cpus,
    /// Dirty page-out, which x86 kernels do not batch.
    dirty: bool,
    needs: Requirement,
}

#[derive(Clone, Copy)]
enum Cpus {
    One,
    Two,
    /// All CPUs of the machine, up to this number.
    UpTo(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Requirement {
    Nothing,
    TwoNodes,
}

const CASE: Case = Case {
    mechanism: Mechanism::Batch,
    workload: "swap",
    parameters: &[],
    what: "",
    cpus: Cpus::One,
    dirty: false,
    needs: Requirement::Nothing,
};

const CASES: &[Case] = &[
    Case { what: "page-out of dirty memory, alone", dirty: true, ..CASE },
    Case {
        what: "page-out of dirty memory, a thread spinning",
        cpus: Cpus::Two,
        dirty: true,
        ..CASE
    },
    Case {
        workload: "migrate",
        what: "migration between nodes, a thread spinning",
        cpus: Cpus::Two,
        needs: Requirement::TwoNodes,
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
        cpus: Cpus::Two,
        ..CASE
    },
    Case {
        mechanism: Mechanism::RemoteFlush,
        workload: "dontneed",
        what: "discard and touch, a thread spinning",
        cpus: Cpus::Two,
        ..CASE
    },
    Case {
        mechanism: Mechanism::RemoteFlush,
        workload: "fileio",
        what: "mapped writes with syncs",
        cpus: Cpus::UpTo(4),
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
        let most = machine.count(Parameter::Cpus);
        match self.cpus {
            Cpus::One => 1,
            Cpus::Two => 2,
            Cpus::UpTo(limit) => most.min(limit),
        }
    }

    fn refusal(&self, machine: &MachineFile) -> Option<String> {
        let cpus = machine.count(Parameter::Cpus);
        if self.cpus(machine) > cpus {
            return Some("the machine has one CPU, so there are no shootdowns".into());
        }
        match self.needs {
            Requirement::TwoNodes if machine.count(Parameter::Nodes) < 2 => {
                Some("the machine has one memory node, so no page migrates".into())
            }
            _ => None,
        }
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
pub struct Predictions {
    /// The prediction for each workload, in the order of the mechanisms.
    pub lines: Vec<Line>,
    /// The assumptions in words.
    pub assumptions: Vec<String>,
    /// The number of broken contracts. If it isn't 0, don't trust any result here.
    pub violations: u64,
    /// Whether a run didn't end.
    pub failed: bool,
}

/// Predicts the time that each mechanism would save on a machine with this kernel.
///
/// # Errors
/// If a workload refuses its parameters.
pub fn predict(machine: &Arc<MachineFile>, kernel: &Kernel) -> Result<Predictions> {
    let mut planned = Vec::new();
    for case in CASES {
        let refusal = case.refusal(machine);
        let jobs = case.jobs(machine, kernel)?;
        planned.push((case, jobs, refusal));
    }
    let mut results = Results::default();
    results.run(
        "predicting",
        planned
            .iter()
            .filter(|(_, _, refusal)| refusal.is_none())
            .flat_map(|(_, (without, with, _), _)| [without.clone(), with.clone()]),
    );
    let lines: Vec<Line> = planned
        .into_iter()
        .map(|(case, jobs, refusal)| line(case, machine, &jobs, refusal, &results))
        .collect();
    Ok(Predictions {
        lines,
        assumptions: assumptions(machine, kernel),
        violations: results.violations(),
        failed: results.failures().next().is_some(),
    })
}

fn line(
    case: &Case,
    machine: &MachineFile,
    (without, with, in_kernel): &(Job, Job, bool),
    refusal: Option<String>,
    results: &Results,
) -> Line {
    let mut line = Line {
        mechanism: case.mechanism,
        workload: case.workload,
        what: case.what,
        cpus: case.cpus(machine),
        metric: None,
        without_policy: None,
        without: None,
        with_policy: None,
        with: None,
        saves_percent: None,
        in_kernel: *in_kernel,
        interrupts_without: None,
        interrupts_with: None,
        refused: refusal,
    };
    if line.refused.is_some() {
        return line;
    }
    let both =
        results.get(without).and_then(|before| results.get(with).map(|after| (before, after)));
    match both {
        Ok((before, after)) => {
            let (old, new) = (before.measure.value, after.measure.value);
            line.metric = Some(before.measure.metric);
            line.without_policy = Some(PolicyText(without.policy).to_string());
            line.with_policy = Some(PolicyText(with.policy).to_string());
            (line.without, line.with) = (Some(old), Some(new));
            let time_ratio = if before.measure.more_is_better { old / new } else { new / old };
            line.saves_percent = Some((1.0 - time_ratio) * 100.0);
            line.interrupts_without = Some(before.machine.interrupts_taken);
            line.interrupts_with = Some(after.machine.interrupts_taken);
        }
        Err(why) => line.refused = Some(why.into()),
    }
    line
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
