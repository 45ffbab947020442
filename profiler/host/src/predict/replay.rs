//! What a change of the kernel, or of a program's calls, would do to what was recorded.
//!
//! The recording comes as a workload that makes its calls again. It runs on the machine in software under what the
//! recording's kernel does: the reference. Against it run the same calls under a kernel with one mechanism more (or one
//! less, where the kernel has it: what it saves already), and fewer, larger calls under the same kernel. Every
//! comparison is made in pairs, with the same seed at the same price of an interrupt, and what is said is the range
//! over all pairs. The price is the recording's own where it tells one, at least and at most; otherwise half and twice
//! that of the machine file. A page fault costs what the recorder measured on the host, if it did.
//!
//! A change is above the noise if in every pair it saves more than [`LEAST`] of the time, and more than seeds differ by
//! at one price; or gives targets back more than [`LEAST`] of all CPUs' time, and costs callers none. However many
//! interrupts a change takes away, nothing is said of it if no caller and no target lacks that time. For a change that
//! matters the next bottleneck is named: the part of the machine whose cost, halved, would then save most.
//!
//! Time is how long the recorded calls and the computing between them take, until the last thread is done: not CPU
//! time. The order of calls, reclaim, and locks of a real kernel are not in it.

use std::sync::Arc;

use quell::{Counter, Mechanism};
use quell_clock::{MachineFile, Parameter};
use quell_conformance::PolicyText;
use quell_workloads::Workload;
use serde::Serialize;

use super::kernel::{Kernel, pair};
use quell_experiments::jobs::{Job, Results};
use quell_experiments::trial::Outcome;

/// The share of the time below which nothing is said.
pub const LEAST: f64 = 0.005;
/// How far the replay's interrupts may be from the recorded ones, as a share of these, for anything to be said.
pub const FAR: f64 = 0.25;
/// The seeds of each pair.
const SEEDS: u64 = 3;

/// A range: at least, at most.
pub type Range = (f64, f64);

/// What the recording says of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Price {
    /// What an initiator waits for one flush, in nanoseconds.
    pub waited_ns: Range,
    /// What an interrupt takes from its target, in nanoseconds.
    pub taken_ns: Range,
    /// How many CPUs a flush interrupts, on average.
    pub targets: f64,
}

/// What was counted in the recording, and is compared with the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Interrupts that were sent.
    Interrupts(u64),
    /// Flushes that asked others, where the recording does not tell whom.
    Flushes(u64),
}

impl Recorded {
    fn count(self) -> u64 {
        match self {
            Recorded::Interrupts(count) | Recorded::Flushes(count) => count,
        }
    }

    fn of(self, outcome: &Outcome) -> u64 {
        outcome.engine.get(match self {
            Recorded::Interrupts(_) => Counter::Sent,
            Recorded::Flushes(_) => Counter::Shootdowns,
        })
    }
}

/// What is replayed.
#[derive(Debug)]
pub struct Recording {
    /// The calls as they were made.
    pub calls: Workload,
    /// How many calls became one, and what calls that makes.
    pub merged: Vec<(u64, Workload)>,
    /// What the calls as they were made sent.
    pub sent: Recorded,
    /// What that cost, if the recording tells.
    pub price: Option<Price>,
    /// What a page fault costs there with the zeroing in it, at least and at most, in nanoseconds; `None` for the
    /// machine file's.
    pub fault_ns: Option<Range>,
}

/// What is different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The kernel has one mechanism more; or has it already, and this is what that saves.
    Mechanism {
        /// S0 to S4.
        name: &'static str,
        /// Whether the kernel has all of it.
        in_kernel: bool,
    },
    /// The program makes one call for so many.
    Merged {
        /// How many.
        calls: u64,
    },
}

/// What a change does.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Change {
    /// The change.
    pub what: What,
    /// The share of the interrupts that goes.
    pub interrupts: Range,
    /// The share of the time that goes.
    pub time: Range,
    /// What targets get back of interrupts, as a share of the time of all CPUs.
    pub stolen: Range,
    /// Whether that is above the noise.
    pub matters: bool,
    /// What limits next, if the change matters and something of the machine does.
    pub next: Option<&'static str>,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// The machine's name.
    pub machine: String,
    /// The kernel's release, or how it was named otherwise.
    pub kernel: String,
    /// What it does, as a policy.
    pub kernel_policy: String,
    /// Interrupts (flushes, where the recording does not tell interrupts) in the recording.
    pub recorded: u64,
    /// As many in the replay under the same kernel.
    pub replayed: u64,
    /// What the recording says that they cost.
    pub price: Option<Price>,
    /// How far seeds differ at one price, as a share: interrupts, and time.
    pub noise: (f64, f64),
    /// What each change does; those that matter first, and of these those that save most time.
    pub changes: Vec<Change>,
    /// How often the contract was broken: anything but zero means that nothing here is to be trusted.
    pub violations: u64,
}

impl Replay {
    /// Whether the replay is near enough to the recording to say anything by it.
    pub fn reproduces(&self) -> bool {
        self.recorded.abs_diff(self.replayed) as f64 <= FAR * self.recorded as f64
    }
}

/// Why nothing can be predicted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoReplay {
    /// A run came to no end.
    #[error("the replay does not run on the machine in software: {0}")]
    Failed(String),
    /// There is nothing to take away.
    #[error(
        "no call in the recording asked another CPU to flush: there is nothing that a change could take away"
    )]
    Nothing,
}

/// Replays what was recorded on a kernel like that, on machines like this.
///
/// # Errors
/// If nothing that was recorded asked another CPU, or a run came to no end.
pub fn replay(
    machine: &MachineFile,
    kernel: &Kernel,
    recording: &Recording,
) -> Result<Replay, NoReplay> {
    let recorded = recording.sent.count();
    if recorded == 0 {
        return Err(NoReplay::Nothing);
    }
    let grid = Grid::new(machine, recording.price, recording.fault_ns);
    let now = Arranged {
        workload: recording.calls,
        merged: 1,
        policy: kernel.policy,
        cpus: recording.calls.cpus(),
    };
    let mut planned: Vec<(What, Arranged, Arranged)> = Mechanism::ALL
        .into_iter()
        .map(|mechanism| {
            let (without, with, in_kernel) = pair(kernel.policy, mechanism);
            let name = mechanism.name();
            let of = |policy| Arranged { policy, ..now };
            (What::Mechanism { name, in_kernel }, of(without), of(with))
        })
        .collect();
    planned.extend(recording.merged.iter().map(|&(calls, workload)| {
        let merged = Arranged {
            workload,
            merged: calls,
            ..now
        };
        (What::Merged { calls }, now, merged)
    }));
    let mut results = Results::default();
    let all = planned.iter().flat_map(|(_, from, to)| [*from, *to]);
    results.run(
        "replaying",
        std::iter::once(now)
            .chain(all)
            .flat_map(|arranged| grid.jobs(arranged)),
    );
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

/// Calls, under a kernel.
#[derive(Clone, Copy)]
struct Arranged {
    workload: Workload,
    /// How many calls became one.
    merged: u64,
    policy: quell::Policy,
    cpus: usize,
}

fn outcome<'r>(results: &'r Results, job: &Job) -> Result<&'r Outcome, NoReplay> {
    results
        .get(job)
        .map_err(|why| NoReplay::Failed(why.to_owned()))
}

/// A share that went, from one figure to another.
fn gone(from: f64, to: f64) -> f64 {
    if from > 0.0 { 1.0 - to / from } else { 0.0 }
}

/// A range, with another figure in it.
fn widened(range: Option<Range>, figure: f64) -> Option<Range> {
    let (least, most) = range.unwrap_or((figure, figure));
    Some((least.min(figure), most.max(figure)))
}

/// Parts of a machine that may limit, and what halves the cost of each.
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
        &[
            (Parameter::Fault, 0.5),
            (Parameter::Allocate, 0.5),
            (Parameter::Refill, 0.5),
        ],
    ),
    (
        "zeroing",
        &[
            (Parameter::ZeroStart, 0.5),
            (Parameter::ZeroJump, 0.5),
            (Parameter::StringRate, 2.0),
        ],
    ),
    (
        "system calls",
        &[(Parameter::SystemCall, 0.5), (Parameter::Area, 0.5)],
    ),
];

/// The machines and seeds that every arrangement runs with.
struct Grid {
    /// One for each price, with a name that tells them apart.
    machines: Vec<(String, Arc<MachineFile>)>,
}

impl Grid {
    fn new(machine: &MachineFile, price: Option<Price>, fault_ns: Option<Range>) -> Self {
        let both = match price {
            Some(price) => [
                (
                    "at least",
                    at(machine, price, price.waited_ns.0, price.taken_ns.0),
                ),
                (
                    "at most",
                    at(machine, price, price.waited_ns.1, price.taken_ns.1),
                ),
            ],
            None => [("half", 0.5), ("twice", 2.0)].map(|(name, factor)| {
                let scaled = PARTS[0].1.iter().fold(machine.clone(), |machine, part| {
                    machine.scaled(part.0, factor)
                });
                (name, scaled)
            }),
        };
        let [(least, low), (most, high)] = both;
        let (low, high) = match fault_ns {
            Some((low_ns, high_ns)) => (filling(&low, low_ns), filling(&high, high_ns)),
            None => (low, high),
        };
        let machines = [(least, low), (most, high)]
            .map(|(name, machine)| (name.to_owned(), Arc::new(machine)));
        Grid {
            machines: machines.into(),
        }
    }

    fn job(&self, arranged: Arranged, price: usize, seed: u64) -> Job {
        let (variant, machine) = &self.machines[price];
        let Arranged {
            workload,
            merged,
            policy,
            cpus,
        } = arranged;
        Job {
            // Also tells apart workloads that were read under one name.
            variant: format!("{variant}, {merged} as one"),
            seed,
            ..Job::new(machine.clone(), workload, policy, cpus)
        }
    }

    /// Every price with every seed.
    fn jobs(&self, arranged: Arranged) -> impl Iterator<Item = Job> {
        let prices = 0..self.machines.len();
        prices.flat_map(move |price| (1..=SEEDS).map(move |seed| self.job(arranged, price, seed)))
    }

    /// How far seeds differ at one price: interrupts, and time.
    fn noise(
        &self,
        arranged: Arranged,
        sent: Recorded,
        results: &Results,
    ) -> Result<(f64, f64), NoReplay> {
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

    /// What goes from one arrangement to another, over all pairs; whether that matters is not said yet.
    fn compare(
        &self,
        what: What,
        from: Arranged,
        to: Arranged,
        sent: Recorded,
        results: &Results,
    ) -> Result<Change, NoReplay> {
        let (mut interrupts, mut time, mut stolen) = (None, None, None);
        for (before, after) in self.jobs(from).zip(self.jobs(to)) {
            let (before, after) = (outcome(results, &before)?, outcome(results, &after)?);
            let window = before.window_nanoseconds;
            let handling = |outcome: &Outcome| outcome.machine.handling as f64 / 1e3;
            let back = handling(before) - handling(after);
            interrupts = widened(
                interrupts,
                gone(sent.of(before) as f64, sent.of(after) as f64),
            );
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

    /// The arrangement on machines of which one part costs half, at the first price.
    fn halved(&self, arranged: Arranged) -> impl Iterator<Item = (&'static str, Job)> {
        let job = self.job(arranged, 0, 1);
        PARTS.iter().map(move |&(part, costs)| {
            let halved = costs
                .iter()
                .fold((*job.machine).clone(), |machine, &(of, factor)| {
                    machine.scaled(of, factor)
                });
            let job = Job {
                machine: Arc::new(halved),
                variant: format!("{}, half of {part}", job.variant),
                ..job.clone()
            };
            (part, job)
        })
    }

    /// The part whose cost, halved, saves most, if that is more than `noise` of the time.
    fn next(
        &self,
        arranged: Arranged,
        noise: f64,
        results: &Results,
    ) -> Result<Option<&'static str>, NoReplay> {
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

/// The machine on which a flush of others costs that much. The machine file's split between sending, entering and what
/// lies between is kept as far as it goes: delivery and leaving the handler become what is left.
fn at(machine: &MachineFile, price: Price, waited_ns: f64, taken_ns: f64) -> MachineFile {
    let ns = |parameter| machine.amount(parameter) / 1e3;
    let sending =
        (ns(Parameter::InterruptSend) + ns(Parameter::GuestSend)) * price.targets.max(1.0);
    let entry = ns(Parameter::InterruptEntry);
    let flush = ns(Parameter::InvalidatePage);
    let mut priced = machine.scaled(Parameter::GuestDelivery, 0.0);
    for (parameter, wanted) in [
        (
            Parameter::InterruptDelivery,
            waited_ns - sending - entry - flush,
        ),
        (Parameter::InterruptExit, taken_ns - entry - flush),
    ] {
        priced = priced.scaled(parameter, wanted.max(0.0) / ns(parameter));
    }
    priced
}

/// The machine on which to fill a page costs that much: what its own zeroing and allocation leave is the trap.
fn filling(machine: &MachineFile, fault_ns: f64) -> MachineFile {
    const PAGE: f64 = 4096.0;
    let ns = |parameter| machine.amount(parameter) / 1e3;
    let zeroing = ns(Parameter::ZeroStart) + PAGE / machine.amount(Parameter::StringRate);
    let trap = fault_ns - zeroing - ns(Parameter::Allocate);
    machine.scaled(Parameter::Fault, trap.max(0.0) / ns(Parameter::Fault))
}

#[cfg(test)]
mod tests;
