//! Replays a recording: the calls of its busiest process, at the recording's own price of an interrupt.
//!
//! [`replay`](super::replay) runs and compares; this module makes the choices before it. The recording gives the number
//! of CPUs, the kernel and the price. If it has more calls than can run in seconds, we replay a fraction of them.

use quell::Mechanism;
use quell_clock::{MachineFile, Parameter};
use quell_record::figures::{Range, count, percent, times};
use quell_record::perf::Host;
use quell_record::report::Report;
use quell_record::show::page;
use quell_record::workload::{Calls, Process, stands_for};
use quell_workloads::Workload;

use super::kernel::Kernel;
use super::replay::{ChangeKind, Price, RecordedCount, Recording, Replay, replay};

/// The numbers of calls to merge into one.
const MERGED: [u64; 3] = [4, 16, 64];
/// The number of calls to replay at most, so that a replay takes seconds.
const CALLS: u64 = 10_000;

/// The headings of the table of changes.
const HEADINGS: [&str; 4] = ["change", "interrupts saved", "time saved", "next limit"];

/// A replay and its origin.
pub struct ReplayedProgram {
    /// The program.
    program: String,
    /// The machine, in words.
    title: String,
    /// The factor by which the calls of each kind were thinned.
    thinned: u64,
    /// The result.
    pub replay: Replay,
}

/// Returns the recorded kernel. If the recording has no release, returns the running kernel.
fn kernel(host: Option<&Host>, machine: &MachineFile) -> anyhow::Result<Kernel> {
    let architecture = machine.architecture().in_linux();
    let tags = machine.amount(Parameter::Tags) > 0.0;
    Ok(match host {
        Some(host) if !host.kernel.is_empty() => Kernel::linux(&host.kernel, architecture, tags)?,
        _ => Kernel::running()?,
    })
}

/// Returns the cost of that program's flushes in the recording, if it is known.
fn price(report: &Report, process: &Process) -> Option<Price> {
    let mut sum = (Range::default(), Range::default());
    let (mut remote, mut interrupts) = (0, 0);
    for site in &report.sites {
        if site.program == process.name() && (!site.kernel || stands_for(&site.call)) {
            sum = (sum.0.plus(site.initiator), sum.1.plus(site.stolen));
            remote += site.remote;
            interrupts += site.interrupts;
        }
    }
    let each = |sum: Range, of: u64| {
        let each = sum.times(1.0 / of.max(1) as f64);
        (each.least, each.most)
    };
    (sum.0.most > 0.0 && sum.1.most > 0.0).then(|| Price {
        waited_ns: each(sum.0, remote),
        taken_ns: each(sum.1, interrupts),
        targets: interrupts as f64 / remote.max(1) as f64,
    })
}

/// Replays the busiest process's calls on `machine`, by a kernel like that of `host`. If `only` is set, considers only
/// that program.
///
/// # Errors
/// If there are no calls to replay, or a run didn't end.
pub fn replay_busiest(
    calls: &Calls,
    only: Option<&str>,
    machine: &MachineFile,
    host: Option<&Host>,
    report: &Report,
) -> anyhow::Result<ReplayedProgram> {
    let process = calls.busiest(only)?;
    let thinned = process.count().div_ceil(CALLS).max(1);
    let price = price(report, &process);
    // We use one CPU for each interrupted one, and one for the initiator.
    let seen = process.targets().map(|targets| targets.round() as usize + 1);
    let cpus = seen.unwrap_or(report.cpus).min(report.cpus).max(2);
    let waited = price.map_or(0.0, |price| (price.waited_ns.0 + price.waited_ns.1) / 2.0);
    let filled = report.fault_ns.map_or(0.0, |price| (price.least + price.most) / 2.0);
    let process = process.timed(report.pace, waited, filled).on_cpus(cpus).thinned(thinned);
    let now = process.workload();
    let workload = |text: &str| Ok::<_, anyhow::Error>(Workload::parse("recording", text)?);
    let merged = MERGED
        .iter()
        .map(|&by| Ok((by, workload(&process.clone().merged(by).workload().text)?)))
        .collect::<anyhow::Result<_>>()?;
    let recording = Recording {
        calls: workload(&now.text)?,
        merged,
        sent: match now.interrupts {
            Some(interrupts) => RecordedCount::Interrupts(interrupts),
            None => RecordedCount::Flushes(now.asked),
        },
        price,
        fault_ns: report.fault_ns.map(|price| (price.least, price.most)),
    };
    Ok(ReplayedProgram {
        replay: replay(machine, &kernel(host, machine)?, &recording)?,
        program: now.program,
        title: machine.title().to_owned(),
        thinned,
    })
}

impl ReplayedProgram {
    /// Describes the replay: its calls, the changes that matter, and the kinds that don't.
    pub fn told(&self) -> page::Findings {
        let replay = &self.replay;
        let price = match &replay.price {
            Some(price) => format!(
                "as recorded, an initiator waits {} and a target loses {}",
                range(price.waited_ns),
                range(price.taken_ns)
            ),
            None => {
                "an interrupt's cost was not recorded, so it is half to twice that of this machine"
                    .into()
            }
        };
        let share = match self.thinned {
            1 => String::new(),
            by => format!(" (one in {} of each kind)", count(by)),
        };
        let mut told = page::Findings {
            before: vec![format!(
                "Repeated the calls of {}{share} on a machine in software ({}; {price}), with a kernel like Linux {} (policy {}): {} \
                 interrupts; recorded: {}.",
                self.program,
                self.title,
                replay.kernel,
                replay.kernel_policy,
                count(replay.replayed),
                count(replay.recorded),
            )],
            headings: HEADINGS.map(str::to_owned).into(),
            ..page::Findings::default()
        };
        if replay.violations > 0 {
            told.before.push(format!(
                "The contract was broken {} times. Do not trust this prediction, and report the error.",
                replay.violations
            ));
        }
        if !replay.reproduces() {
            let far = "These numbers differ by more than a quarter, so no change is predicted.";
            told.before.push(far.into());
            return told;
        }
        let mattering = || replay.changes.iter().filter(|change| change.matters);
        told.rows = mattering()
            .map(|change| {
                vec![
                    said(change.what),
                    shares(change.interrupts),
                    shares(change.time),
                    change.next.unwrap_or("the program itself").to_owned(),
                ]
            })
            .collect();
        let by_kernel =
            |what: &ChangeKind| matches!(what, ChangeKind::Mechanism { in_kernel: false, .. });
        let nothing = |what| format!("No effect of {what} is above the noise.");
        if !mattering().any(|change| by_kernel(&change.what)) {
            told.after.push(nothing("another kernel"));
        }
        let by_calls = |what: &ChangeKind| matches!(what, ChangeKind::Merged { .. });
        if !mattering().any(|change| by_calls(&change.what)) {
            told.after.push(nothing("larger calls"));
        }
        told
    }
}

fn said(what: ChangeKind) -> String {
    let title = |name: &str| {
        let of = Mechanism::ALL.into_iter().find(|of| of.name() == name);
        of.map_or("", Mechanism::title)
    };
    match what {
        ChangeKind::Mechanism { name, in_kernel } => {
            let has = if in_kernel { " (saved already: this kernel has it)" } else { "" };
            format!("{} ({name}){has}", title(name))
        }
        ChangeKind::Merged { calls } => format!("one call instead of {calls}"),
    }
}

fn range((least, most): (f64, f64)) -> String {
    times(Range { least, most })
}

/// Formats shares for people. Shares are negative if a change adds costs.
fn shares((least, most): (f64, f64)) -> String {
    let one = |share: f64| match share < 0.0 {
        true => format!("-{}", percent(-share)),
        false => percent(share),
    };
    match (one(least), one(most)) {
        (least, most) if least == most => most,
        (least, most) => format!("{} to {most}", least.trim_end_matches(" %")),
    }
}
