//! `quell predict`: what each mechanism would save on this host.
//!
//! The seeds' workloads run on the machine in software, whose costs are those of a machine file (of
//! this host, as `quell measure host` wrote it), once under what this host's kernel does and once with one
//! mechanism more. Where the kernel has the mechanism already, what is shown is what it saves now.
//!
//! These are predictions: nothing here was measured with the mechanism on this host. What they rest on is
//! printed with them.

pub mod kernel;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use comfy_table::ContentArrangement;
use quell::Mechanism;
use quell_clock::{MachineFile, Parameter};
use quell_workloads::Workload;
use serde::Serialize;

use crate::bench::{Job, Results};
use crate::machines;
use crate::policy::{self, NamedPolicy};
use crate::table::{align_right, table};
use crate::usage::usage;
use kernel::Kernel;

/// The machine file that `quell measure host` writes and `quell predict` reads unless told otherwise.
pub const HOST_FILE: &str = "quell-host.toml";

/// Predict what each mechanism would save on this host
///
/// Runs the workloads of the published systems on the machine in software, with the costs of this host's
/// machine file, under what the host's kernel does and with one mechanism more. Exit codes: 0 predicted,
/// 1 a run failed or broke the contract, 2 bad arguments or no machine file.
#[derive(Args, Debug)]
pub struct PredictArgs {
    /// The machine: a file as `quell measure host` writes it, or a built-in name
    #[arg(long, value_name = "FILE", default_value = HOST_FILE)]
    machine: String,
    /// What the kernel does already, as a policy (`quell list policies`) [default: by the release that runs here]
    #[arg(long, value_name = "POLICY")]
    kernel: Option<String>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// A workload of a seed with which its mechanism is judged.
struct Case {
    mechanism: Mechanism,
    workload: &'static str,
    parameters: &'static [&'static str],
    what: &'static str,
    cpus: Cpus,
    /// Dirty page-out, which x86 kernels do not batch.
    dirty: bool,
    needs: Needs,
}

#[derive(Clone, Copy)]
enum Cpus {
    One,
    Two,
    /// All of the machine, at most so many.
    UpTo(usize),
}

#[derive(Clone, Copy, PartialEq)]
enum Needs {
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
    needs: Needs::Nothing,
};

const CASES: &[Case] = &[
    Case {
        what: "page-out of dirty memory, alone",
        dirty: true,
        ..CASE
    },
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
        needs: Needs::TwoNodes,
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

/// One line of the result.
#[derive(Debug, Serialize)]
struct Line {
    mechanism: &'static str,
    workload: &'static str,
    what: &'static str,
    cpus: usize,
    metric: Option<&'static str>,
    /// The kernel without the mechanism.
    without_policy: Option<String>,
    without: Option<f64>,
    with_policy: Option<String>,
    with: Option<f64>,
    /// Time saved by the mechanism, in percent of the time without; negative if it costs.
    saves_percent: Option<f64>,
    /// Whether the host's kernel has the mechanism, so that this is what it saves already.
    in_kernel: bool,
    interrupts_without: Option<u64>,
    interrupts_with: Option<u64>,
    /// Why there is no prediction.
    refused: Option<String>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: u32,
    machine: &'a str,
    title: &'a str,
    kernel: &'a str,
    kernel_policy: &'a str,
    predictions: &'a [Line],
    assumptions: &'a [String],
    violations: u64,
}

fn machine(text: &str) -> Result<MachineFile> {
    if text == HOST_FILE && !Path::new(text).exists() {
        return Err(usage(format_args!(
            "there is no {HOST_FILE} here: `quell measure host` writes it; or name a machine with --machine ({})",
            machines::names().collect::<Vec<_>>().join(", ")
        )));
    }
    machines::find(text)
}

/// Whether the policy has all of the mechanism, part of it or nothing.
fn has(policy: &NamedPolicy, mechanism: Mechanism) -> bool {
    policy.engine.with(mechanism) == policy.engine
}

fn without(policy: &NamedPolicy, mechanism: Mechanism) -> NamedPolicy {
    let (terms, details) = policy
        .text
        .split_once(',')
        .map_or((&*policy.text, String::new()), |(terms, details)| {
            (terms, format!(",{details}"))
        });
    format!("{terms}-{}{details}", policy::seed(mechanism))
        .parse()
        .unwrap_or_else(|_| policy.clone())
}

/// The host's kernel without and with the mechanism, and whether it has it.
fn pair(policy: &NamedPolicy, mechanism: Mechanism) -> (NamedPolicy, NamedPolicy, bool) {
    if has(policy, mechanism) {
        (without(policy, mechanism), policy.clone(), true)
    } else {
        let mut with = policy.with(mechanism);
        // Written so that it reads back as itself: all of the mechanism, no details that take from it.
        let terms = policy.text.split(',').next().unwrap_or_default();
        with.text = if terms.split('+').any(|term| term == policy::seed(mechanism)) {
            terms.into()
        } else {
            let details = &policy.text[terms.len()..];
            format!("{terms}+{}{details}", policy::seed(mechanism))
        };
        (policy.clone(), with, false)
    }
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
            return Some("the machine has one CPU: nothing is ever shot down".into());
        }
        match self.needs {
            Needs::TwoNodes if machine.count(Parameter::Nodes) < 2 => {
                Some("the machine has one memory node: nothing migrates".into())
            }
            _ => None,
        }
    }

    fn jobs(&self, machine: &Arc<MachineFile>, kernel: &Kernel) -> Result<(Job, Job, bool)> {
        let mut workload = Workload::from_name(self.workload)
            .ok_or_else(|| anyhow::anyhow!("no workload {}", self.workload))?;
        for pair in self.parameters {
            workload.set(pair).map_err(usage)?;
        }
        let policy = if self.dirty {
            &kernel.dirty
        } else {
            &kernel.policy
        };
        let (without, with, in_kernel) = pair(policy, self.mechanism);
        let job = |policy| Job::new(machine.clone(), workload, policy, self.cpus(machine));
        Ok((job(without), job(with), in_kernel))
    }
}

/// Predicts and prints.
///
/// # Errors
/// If the machine or the policy does not exist or is wrong.
pub fn run(args: &PredictArgs) -> Result<ExitCode> {
    let machine = Arc::new(machine(&args.machine)?);
    let kernel = match &args.kernel {
        Some(text) => Kernel::of_policy(text.parse().map_err(usage)?),
        None => Kernel::running(),
    };
    let mut planned = Vec::new();
    for case in CASES {
        let refusal = case.refusal(&machine);
        let jobs = case.jobs(&machine, &kernel)?;
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
        .map(|(case, jobs, refusal)| line(case, &machine, &jobs, refusal, &results))
        .collect();
    let assumptions = assumptions(&machine, &kernel);
    let violations = results.violations();
    if args.json {
        let document = Document {
            schema: 1,
            machine: machine.name(),
            title: machine.title(),
            kernel: &kernel.release,
            kernel_policy: &kernel.policy.text,
            predictions: &lines,
            assumptions: &assumptions,
            violations,
        };
        println!("{}", serde_json::to_string_pretty(&document)?);
    } else {
        print(&machine, &kernel, &lines, &assumptions, violations);
    }
    let failed = violations > 0 || results.failures().next().is_some();
    Ok(ExitCode::from(u8::from(failed)))
}

fn line(
    case: &Case,
    machine: &MachineFile,
    (without, with, in_kernel): &(Job, Job, bool),
    refusal: Option<String>,
    results: &Results,
) -> Line {
    let mut line = Line {
        mechanism: policy::seed(case.mechanism),
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
    let both = results
        .get(without)
        .and_then(|before| results.get(with).map(|after| (before, after)));
    match both {
        Ok((before, after)) => {
            let (old, new) = (before.measure.value, after.measure.value);
            line.metric = Some(before.measure.metric);
            line.without_policy = Some(without.policy.text.clone());
            line.with_policy = Some(with.policy.text.clone());
            (line.without, line.with) = (Some(old), Some(new));
            let time_ratio = if before.measure.more_is_better {
                old / new
            } else {
                new / old
            };
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
            "the kernel ({}) does what the policy `{}` says, and `{}` when it pages dirty memory out",
            kernel.release, kernel.policy, kernel.dirty
        ),
        format!(
            "{assumed} of the machine's {total} figures are marked as assumed; each has its source in the machine file"
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
    all.push(
        "workloads are the published ones in shape, not in size: less memory, fewer rounds".into(),
    );
    all.push("other CPUs only spin or do the same; devices, locks of a real kernel and other programs are not modelled".into());
    all
}

fn print(
    machine: &MachineFile,
    kernel: &Kernel,
    lines: &[Line],
    assumptions: &[String],
    violations: u64,
) {
    println!(
        "What each mechanism would save on {} ({}), kernel {}.\n",
        machine.name(),
        machine.title(),
        kernel.release
    );
    let mut table = table(&[
        "",
        "workload",
        "CPUs",
        "figure",
        "without",
        "with",
        "saves",
        "interrupts",
        "",
    ]);
    table.set_content_arrangement(ContentArrangement::Disabled);
    let shown = |value: Option<f64>| value.map_or("-".into(), crate::reproduce::digits);
    for line in lines {
        let note = match &line.refused {
            Some(_) => "not predicted",
            None if line.in_kernel => "saved already",
            None => "",
        };
        table.add_row([
            line.mechanism.to_owned(),
            line.what.to_owned(),
            line.cpus.to_string(),
            line.metric.unwrap_or("-").to_owned(),
            shown(line.without),
            shown(line.with),
            line.saves_percent
                .map_or("-".into(), |percent| format!("{percent:+.1} %")),
            match (line.interrupts_without, line.interrupts_with) {
                (Some(before), Some(after)) => format!("{before} -> {after}"),
                _ => "-".into(),
            },
            note.to_owned(),
        ]);
    }
    align_right(&mut table, 4..8);
    println!("{table}");
    for line in lines {
        if let Some(why) = &line.refused {
            println!("  {} {}: {why}", line.mechanism, line.workload);
        }
    }
    if lines.iter().any(|line| line.in_kernel) {
        println!(
            "  saved already: this kernel has the mechanism; \"without\" is what it would be without it"
        );
    }
    println!("\nThis rests on:");
    for assumption in assumptions {
        println!("  - {assumption}");
    }
    if violations > 0 {
        println!("\nThe contract was broken {violations} times: do not trust this, and report it.");
    }
}
