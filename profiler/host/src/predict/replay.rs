//! Replays a recording to predict the effect of changes to the kernel or to a program's calls.
//!
//! The recording is a workload that makes its calls again. We run it on the machine in software with the mechanisms of
//! the recording's kernel: this is the reference. We also run the same calls under a kernel with one mechanism more. If
//! the kernel has the mechanism already, we remove it, to show the time that it saves. And we run fewer, larger calls
//! under the same kernel.
//!
//! We make every comparison in pairs, with the same seed at the same price of an interrupt. The result is the range
//! over all pairs. The price has the bounds of the recording, if known; otherwise half and twice that of the machine
//! file. A page fault costs the time that the recorder measured on the host, if it did.
//!
//! A change is above the noise in two cases. Either every pair saves more than [`LEAST`] of the time, and more than
//! seeds differ at one price. Or targets regain more than [`LEAST`] of all CPUs' time, and callers lose none.
//! Interrupts that cost neither callers nor targets time don't count. For a change that matters, we name the next
//! bottleneck: the part of the machine that would save most time at half its cost.
//!
//! We count the time until the last thread has made its recorded calls, with the computing between them. It isn't CPU
//! time. The replay leaves out a real kernel's order of calls, reclaim, and locks.

use std::sync::Arc;

use quell::{Counter, Mechanism};
use quell_clock::{MachineFile, Parameter};
use quell_conformance::PolicyText;
use quell_workloads::Workload;
use serde::Serialize;

use super::kernel::{Kernel, pair};
use quell_model::jobs::{Job, Results};
use quell_model::trial::Outcome;

/// The least share of the time that a change must save to be reported.
pub const LEAST: f64 = 0.005;
/// The largest relative distance of replayed interrupts from recorded ones, for a prediction.
pub const FAR: f64 = 0.25;
/// The number of seeds of each pair.
const SEEDS: u64 = 3;

/// A range: lower and upper bound.
pub type Range = (f64, f64);

/// The cost of interrupts in the recording.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    /// The wait of an initiator for one flush, in nanoseconds.
    pub waited_ns: Range,
    /// The time that an interrupt takes from its target, in nanoseconds.
    pub taken_ns: Range,
    /// The mean number of CPUs that a flush interrupts.
    pub targets: f64,
}

/// The recorded count that is compared with the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedCount {
    /// Interrupts that were sent.
    Interrupts(u64),
    /// Flushes with remote targets, if the recording doesn't have the targets.
    Flushes(u64),
}

impl RecordedCount {
    fn count(self) -> u64 {
        match self {
            RecordedCount::Interrupts(count) | RecordedCount::Flushes(count) => count,
        }
    }

    fn of(self, outcome: &Outcome) -> u64 {
        outcome.engine.get(match self {
            RecordedCount::Interrupts(_) => Counter::Sent,
            RecordedCount::Flushes(_) => Counter::Shootdowns,
        })
    }
}

/// The input of a replay.
#[derive(Debug)]
pub struct Recording {
    /// The calls as they were made.
    pub calls: Workload,
    /// Larger calls: the number of calls merged into one, and the resulting workload.
    pub merged: Vec<(u64, Workload)>,
    /// The recorded count for the calls as they were made.
    pub sent: RecordedCount,
    /// The cost of these interrupts, if known.
    pub price: Option<Price>,
    /// Bounds for the cost of a page fault on the recorded host, zeroing included, in nanoseconds. `None` takes the
    /// machine file's.
    pub fault_ns: Option<Range>,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The kernel has one mechanism more. If it has the mechanism already, the result is the time that it saves.
    Mechanism {
        /// S0 to S4.
        name: &'static str,
        /// Whether the kernel has all of it.
        in_kernel: bool,
    },
    /// The program makes one call in place of several.
    Merged {
        /// The number of calls merged into one.
        calls: u64,
    },
}

/// A change and its effect.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Change {
    /// The change.
    pub what: ChangeKind,
    /// The share of the interrupts that is saved.
    pub interrupts: Range,
    /// The share of the time that is saved.
    pub time: Range,
    /// The time that targets regain from interrupts, as a share of the time of all CPUs.
    pub stolen: Range,
    /// Whether the effect is above the noise.
    pub matters: bool,
    /// The next bottleneck, if the change matters and a part of the machine is one.
    pub next: Option<&'static str>,
}

/// The result of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// The machine's name.
    pub machine: String,
    /// The kernel's release or other name.
    pub kernel: String,
    /// The kernel's policy.
    pub kernel_policy: String,
    /// Interrupts in the recording, or flushes if it doesn't have interrupts.
    pub recorded: u64,
    /// The same count in the replay under the same kernel.
    pub replayed: u64,
    /// The cost of interrupts in the recording.
    pub price: Option<Price>,
    /// The differences between seeds at one price, as shares of the interrupts and of the time.
    pub noise: (f64, f64),
    /// The changes. Those that matter come first, sorted by the time that they save.
    pub changes: Vec<Change>,
    /// The number of broken contracts. If it isn't 0, don't trust any result here.
    pub violations: u64,
}

impl Replay {
    /// Returns whether the replay is near enough to the recording for a prediction.
    pub fn reproduces(&self) -> bool {
        self.recorded.abs_diff(self.replayed) as f64 <= FAR * self.recorded as f64
    }
}

/// The reason why there is no prediction.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ReplayError {
    /// A run didn't end.
    #[error("the replay does not run on the machine in software: {0}")]
    Failed(String),
    /// No call sent an interrupt that a change could save.
    #[error("no recorded call made another CPU flush, so no change can save interrupts")]
    Nothing,
}

/// Replays a recording on machines like this, by a kernel like that.
///
/// # Errors
/// If no recorded call had a remote target, or a run didn't end.
pub fn replay(
    machine: &MachineFile,
    kernel: &Kernel,
    recording: &Recording,
) -> Result<Replay, ReplayError> {
    let recorded = recording.sent.count();
    if recorded == 0 {
        return Err(ReplayError::Nothing);
    }
    let grid = Grid::new(machine, recording.price, recording.fault_ns);
    let now = Arrangement {
        workload: recording.calls,
        merged: 1,
        policy: kernel.policy,
        cpus: recording.calls.cpus(),
    };
    let mut planned: Vec<(ChangeKind, Arrangement, Arrangement)> = Mechanism::ALL
        .into_iter()
        .map(|mechanism| {
            let (without, with, in_kernel) = pair(kernel.policy, mechanism);
            let name = mechanism.name();
            let of = |policy| Arrangement { policy, ..now };
            (ChangeKind::Mechanism { name, in_kernel }, of(without), of(with))
        })
        .collect();
    planned.extend(recording.merged.iter().map(|&(calls, workload)| {
        let merged = Arrangement { workload, merged: calls, ..now };
        (ChangeKind::Merged { calls }, now, merged)
    }));
    let mut results = Results::default();
    let all = planned.iter().flat_map(|(_, from, to)| [*from, *to]);
    results
        .run("replaying", std::iter::once(now).chain(all).flat_map(|arranged| grid.jobs(arranged)));
    let noise = grid.noise(now, recording.sent, &results)?;
    let mut changes = Vec::new();
    for &(what, from, to) in &planned {
        let change = grid.compare(what, from, to, recording.sent, &results)?;
        let matters = change.time.0 > noise.1.max(LEAST)
            || change.stolen.0 > LEAST && change.time.0 >= -noise.1;
        changes.push((Change { matters, ..change }, to));
    }
    let mattering = || changes.iter().filter(|(change, _)| change.matters);
    results.run(
        "looking for the next bottleneck",
        mattering().flat_map(|&(_, to)| grid.halved(to).map(|(_, job)| job)),
    );
    for (change, to) in &mut changes {
        if change.matters {
            change.next = grid.next(*to, noise.1.max(LEAST), &results)?;
        }
    }
    let mut changes: Vec<Change> = changes.into_iter().map(|(change, _)| change).collect();
    changes.sort_by(|a, b| {
        let saved = |change: &Change| change.time.0 + change.time.1;
        (b.matters.cmp(&a.matters)).then(saved(b).total_cmp(&saved(a)))
    });
    let reference = outcome(&results, &grid.job(now, 0, 1))?;
    Ok(Replay {
        machine: machine.name().into(),
        kernel: kernel.release.clone(),
        kernel_policy: PolicyText(kernel.policy).to_string(),
        recorded,
        replayed: recording.sent.of(reference),
        price: recording.price,
        noise,
        changes,
        violations: results.violations(),
    })
}

/// A workload under a kernel.
#[derive(Clone, Copy)]
struct Arrangement {
    workload: Workload,
    /// The number of calls merged into one.
    merged: u64,
    policy: quell::Policy,
    cpus: usize,
}

fn outcome<'r>(results: &'r Results, job: &Job) -> Result<&'r Outcome, ReplayError> {
    results.get(job).map_err(|why| ReplayError::Failed(why.to_owned()))
}

/// Returns the share that is saved from one figure to another.
fn gone(from: f64, to: f64) -> f64 {
    if from > 0.0 { 1.0 - to / from } else { 0.0 }
}

/// Widens a range to contain another figure.
fn widened(range: Option<Range>, figure: f64) -> Option<Range> {
    let (least, most) = range.unwrap_or((figure, figure));
    Some((least.min(figure), most.max(figure)))
}

/// Parts of a machine that may be the bottleneck, with the factors that halve their cost.
const PARTS: &[(&str, &[(Parameter, f64)])] = &[
    (
        "interrupts",
        &[
            (Parameter::InterruptSend, 0.5),
            (Parameter::InterruptDelivery, 0.5),
            (Parameter::InterruptRemote, 0.5),
            (Parameter::InterruptEntry, 0.5),
            (Parameter::InterruptExit, 0.5),
            (Parameter::GuestSend, 0.5),
            (Parameter::GuestDelivery, 0.5),
        ],
    ),
    (
        "page faults",
        &[(Parameter::Fault, 0.5), (Parameter::Allocate, 0.5), (Parameter::Refill, 0.5)],
    ),
    (
        "zeroing",
        &[(Parameter::ZeroStart, 0.5), (Parameter::ZeroJump, 0.5), (Parameter::StringRate, 2.0)],
    ),
    ("system calls", &[(Parameter::SystemCall, 0.5), (Parameter::Area, 0.5)]),
];

/// The machines and seeds that every arrangement runs with.
struct Grid {
    /// A machine for each price, with a distinct name.
    machines: [(&'static str, Arc<MachineFile>); 2],
}

impl Grid {
    fn new(machine: &MachineFile, price: Option<Price>, fault_ns: Option<Range>) -> Self {
        let both = match price {
            Some(price) => [
                ("at least", at(machine, price, price.waited_ns.0, price.taken_ns.0)),
                ("at most", at(machine, price, price.waited_ns.1, price.taken_ns.1)),
            ],
            None => [("half", 0.5), ("twice", 2.0)].map(|(name, factor)| {
                let costs = PARTS[0].1.iter();
                let scaled =
                    costs.fold(machine.clone(), |machine, &(of, _)| machine.scaled(of, factor));
                (name, scaled)
            }),
        };
        let [low, high] = both;
        let filled = |(name, machine): (_, MachineFile), fault_ns: Option<f64>| {
            (name, Arc::new(fault_ns.map_or(machine.clone(), |ns| filling(&machine, ns))))
        };
        let (low_ns, high_ns) = fault_ns.unzip();
        Grid { machines: [filled(low, low_ns), filled(high, high_ns)] }
    }

    fn job(&self, arranged: Arrangement, price: usize, seed: u64) -> Job {
        let (variant, machine) = &self.machines[price];
        let Arrangement { workload, merged, policy, cpus } = arranged;
        Job {
            // The number also distinguishes workloads that were parsed under one name.
            variant: format!("{variant}, {merged} as one"),
            seed,
            ..Job::new(machine.clone(), workload, policy, cpus)
        }
    }

    /// Returns the jobs for every price with every seed.
    fn jobs(&self, arranged: Arrangement) -> impl Iterator<Item = Job> {
        let prices = 0..self.machines.len();
        prices.flat_map(move |price| (1..=SEEDS).map(move |seed| self.job(arranged, price, seed)))
    }

    /// Returns the largest differences between seeds at one price: interrupts and time.
    fn noise(
        &self,
        arranged: Arrangement,
        sent: RecordedCount,
        results: &Results,
    ) -> Result<(f64, f64), ReplayError> {
        let mut noise = (0.0_f64, 0.0_f64);
        for price in 0..self.machines.len() {
            let mut seen: (Option<Range>, Option<Range>) = (None, None);
            for seed in 1..=SEEDS {
                let outcome = outcome(results, &self.job(arranged, price, seed))?;
                seen.0 = widened(seen.0, sent.of(outcome) as f64);
                seen.1 = widened(seen.1, outcome.window_nanoseconds);
            }
            let differ =
                |range: Option<Range>| range.map_or(0.0, |(least, most)| gone(most, least));
            noise = (noise.0.max(differ(seen.0)), noise.1.max(differ(seen.1)));
        }
        Ok(noise)
    }

    /// Compares two arrangements over all pairs. Leaves `matters` and `next` unset.
    fn compare(
        &self,
        what: ChangeKind,
        from: Arrangement,
        to: Arrangement,
        sent: RecordedCount,
        results: &Results,
    ) -> Result<Change, ReplayError> {
        let (mut interrupts, mut time, mut stolen) = (None, None, None);
        for (before, after) in self.jobs(from).zip(self.jobs(to)) {
            let (before, after) = (outcome(results, &before)?, outcome(results, &after)?);
            let window = before.window_nanoseconds;
            let handling = |outcome: &Outcome| outcome.machine.handling as f64 / 1e3;
            let back = handling(before) - handling(after);
            interrupts = widened(interrupts, gone(sent.of(before) as f64, sent.of(after) as f64));
            time = widened(time, gone(window, after.window_nanoseconds));
            stolen = widened(stolen, back / (window * from.cpus as f64).max(1.0));
        }
        Ok(Change {
            what,
            interrupts: interrupts.unwrap_or_default(),
            time: time.unwrap_or_default(),
            stolen: stolen.unwrap_or_default(),
            matters: false,
            next: None,
        })
    }

    /// Returns a job for each part, on a machine where that part costs half, at the first price.
    fn halved(&self, arranged: Arrangement) -> impl Iterator<Item = (&'static str, Job)> {
        let job = self.job(arranged, 0, 1);
        PARTS.iter().map(move |&(part, costs)| {
            let halved = costs
                .iter()
                .fold((*job.machine).clone(), |machine, &(of, factor)| machine.scaled(of, factor));
            let job = Job {
                machine: Arc::new(halved),
                variant: format!("{}, half of {part}", job.variant),
                ..job.clone()
            };
            (part, job)
        })
    }

    /// Returns the part that saves most at half its cost, if that is more than `noise` of the time.
    fn next(
        &self,
        arranged: Arrangement,
        noise: f64,
        results: &Results,
    ) -> Result<Option<&'static str>, ReplayError> {
        let before = outcome(results, &self.job(arranged, 0, 1))?.window_nanoseconds;
        let mut best = (noise, None);
        for (part, job) in self.halved(arranged) {
            let saved = gone(before, outcome(results, &job)?.window_nanoseconds);
            if saved > best.0 {
                best = (saved, Some(part));
            }
        }
        Ok(best.1)
    }
}

/// Returns `machine` with the cost of a remote flush changed: the initiator waits `waited_ns`, and the target loses
/// `taken_ns`.
///
/// We keep the machine file's costs of sending and entering. Delivery and the exit from the handler become the rest.
fn at(machine: &MachineFile, price: Price, waited_ns: f64, taken_ns: f64) -> MachineFile {
    let ns = |parameter| machine.amount(parameter) / 1e3;
    let sending =
        (ns(Parameter::InterruptSend) + ns(Parameter::GuestSend)) * price.targets.max(1.0);
    let entry = ns(Parameter::InterruptEntry);
    let flush = ns(Parameter::InvalidatePage);
    let mut priced = machine.scaled(Parameter::GuestDelivery, 0.0);
    for (parameter, wanted) in [
        (Parameter::InterruptDelivery, waited_ns - sending - entry - flush),
        (Parameter::InterruptExit, taken_ns - entry - flush),
    ] {
        priced = priced.scaled(parameter, wanted.max(0.0) / ns(parameter));
    }
    priced
}

/// Returns `machine` with page faults that cost `fault_ns`. The trap's cost becomes the rest beside zeroing and
/// allocation.
fn filling(machine: &MachineFile, fault_ns: f64) -> MachineFile {
    const PAGE: f64 = 4096.0;
    let ns = |parameter| machine.amount(parameter) / 1e3;
    let zeroing = ns(Parameter::ZeroStart) + PAGE / machine.amount(Parameter::StringRate);
    let trap = fault_ns - zeroing - ns(Parameter::Allocate);
    machine.scaled(Parameter::Fault, trap.max(0.0) / ns(Parameter::Fault))
}

#[cfg(test)]
mod tests;
