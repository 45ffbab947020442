//! The protocol between host and guest: a plan of jobs, and events in return.
//!
//! The host compiles this file too, so both share one definition. The plan is the file [`PLAN`] of the initial file
//! system, one [`Job`] in JSON a line. Every event is a line on the serial console, [`PREFIX`] and an [`Event`] in
//! JSON; the last is [`Event::Exit`]. Counters are sent as the kernel prints them, and parsed on the host, which tests
//! the parser.

use serde::{Deserialize, Serialize};

/// Where the guest finds its plan.
pub const PLAN: &str = "plan";

/// The delay before the first job in microseconds: `quell_late_us=N` on Linux's command line, which Linux passes to
/// its first process as an environment variable.
pub const LATE: &str = "quell_late_us";

/// The prefix of every event's line.
#[allow(dead_code)] // The host follows lines of this form for its own kernel too.
pub const PREFIX: &str = "quell: ";

/// The job that runs the conformance suite's programs: its events are [`Event::Checked`], one for each check.
pub const CONFORMANCE: &str = "conformance";

/// The job that performs every operation on every CPU at random, `rounds=N` rounds long, `seed=N`: one
/// [`Event::Checked`].
pub const STRESS: &str = "stress";

/// Where the guest finds the programs that it is to run after its jobs, one [`Program`] in JSON a line. The file need
/// not be there.
pub const PROGRAMS: &str = "programs";

/// A third-party program whose exit status reports success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its name in reports.
    pub name: String,
    /// Its file, and its arguments.
    pub command: Vec<String>,
    /// The time after which it is killed, with all its processes.
    pub seconds: u64,
    /// More memory than this, in bytes, its processes may not use together.
    pub memory: Option<u64>,
    /// Settings to write before it starts: files below `/proc/sys` and `/sys`, and their values.
    pub settings: Vec<(String, String)>,
}

/// How a program came to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitKind {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It took too long, and was ended.
    Late,
    /// It could not be started, or lacks a requirement: the reason.
    Never(String),
}

/// Something that the guest measures, or checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The workload's name, or [`CONFORMANCE`], or [`STRESS`].
    pub workload: String,
    /// The workload's file, if it is not built in.
    pub file: Option<String>,
    /// Parameters that differ from its defaults, like `pages=512`.
    pub parameters: Vec<String>,
    /// How many CPUs take part; the machine may have more, which are then idle.
    pub team: usize,
    /// How one process hands the CPU to the next; only for workloads that do.
    pub handover: Handover,
    /// Whether invalidations are counted. Counting takes instructions, so they are not counted then.
    pub traced: bool,
}

/// How a process hands its CPU to the next on a kernel without a call for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handover {
    /// By `sched_yield` among real-time processes of equal priority: one call a switch.
    #[default]
    Yield,
    /// By a write to the next one's eventfd and a read from its own, as the published test did.
    Eventfd,
}

/// An event that the guest reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It has started.
    Linux {
        /// The kernel's release.
        release: String,
        /// How many CPUs are online.
        cpus: usize,
    },
    /// Some requirement of jobs is missing.
    Lacking {
        /// Its name.
        what: String,
        /// Why.
        why: String,
    },
    /// A job has run.
    Done {
        /// Its place in the plan, from 0.
        job: usize,
        /// The work done in the window, in the workload's unit.
        done: u64,
        /// How long the window was, in ticks of the time-stamp counter.
        ticks: u64,
        /// Counters when the window opened.
        before: Counters,
        /// Counters when it closed.
        after: Counters,
        /// The kernel's histogram of flushes in the window by reason and pages, if it was traced.
        flushes: String,
    },
    /// A check has run.
    Checked {
        /// Its job's place in the plan, from 0.
        job: usize,
        /// Its name.
        name: String,
        /// On how many CPUs it failed.
        failures: u64,
        /// The finding, or the work done.
        saw: String,
    },
    /// A program is about to start.
    Starts {
        /// Its place among the programs, from 0.
        program: usize,
    },
    /// A program has ended.
    Ended {
        /// Its place among the programs, from 0.
        program: usize,
        /// How.
        how: ExitKind,
        /// How long it took, in milliseconds.
        milliseconds: u64,
        /// How many of its parts have passed, by its output: lines that begin with `ok`, as TAP has them.
        passed: u64,
        /// The parts that have not (lines that begin with `not ok`): their names; some hundreds at most.
        failed: Vec<String>,
        /// The last lines of its output.
        last: Vec<String>,
    },
    /// The counts of the engine and of Linux since the machine started, one after the other. Only if the engine is on
    /// and shows its statistics.
    Counted {
        /// Linux's row `TLB` of `/proc/interrupts`, read before the engine's counts.
        before: String,
        /// The engine's counters, a name and a number a line.
        engine: String,
        /// The row `TLB`, once more.
        after: String,
    },
    /// A job could not run.
    Failed {
        /// Its place in the plan, from 0.
        job: usize,
        /// Why.
        why: String,
    },
    /// The guest is done.
    Exit {
        /// 0 if it followed the plan to its end.
        code: u64,
    },
}

/// The kernel's counters at one moment, as it prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The row `CAL` of `/proc/interrupts`: function calls that came in on each CPU, Linux's own flushes among them.
    pub interrupts: String,
    /// The engine's counter `sent`, a name and a number; empty without the engine.
    pub engine: String,
    /// Rows of `/proc/vmstat` that show whether the intended work was done.
    pub memory: String,
    /// The rows `.idle_sleeptime` of `/proc/timer_list`: how long each CPU was idle, in nanoseconds.
    pub idle: String,
}
