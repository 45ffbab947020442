//! The protocol between host and guest: a plan of jobs, and events in return.
//!
//! The host compiles this file, too, so both share one definition. The plan is the file [`PLAN`] of the initial file
//! system, with one [`Job`] in JSON on each line. Every event is a line on the serial console: [`PREFIX`] and an
//! [`Event`] in JSON. The last one is [`Event::Exit`]. We send counters as the kernel prints them, and parse them on
//! the host, where the parser is tested.

use serde::{Deserialize, Serialize};

/// The path of the guest's plan.
pub const PLAN: &str = "plan";

/// The delay before the first job in microseconds: `quell_late_us=N` on Linux's command line, which Linux passes to
/// its first process as an environment variable.
pub const LATE: &str = "quell_late_us";

/// The prefix of every event's line.
#[allow(dead_code)] // The host follows lines of this form for its own kernel, too.
pub const PREFIX: &str = "quell: ";

/// The job of the conformance suite's programs, with one [`Event::Checked`] for each check.
pub const CONFORMANCE: &str = "conformance";

/// The job that performs every operation on every CPU at random. Its parameters are `rounds=N` and `seed=N`. It reports
/// one [`Event::Checked`].
pub const STRESS: &str = "stress";

/// The programs that the guest runs after its jobs: one [`Program`] in JSON a line. The file may be missing.
pub const PROGRAMS: &str = "programs";

/// A third-party program whose exit status reports success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The program's name in reports.
    pub name: String,
    /// The program's file, and its arguments.
    pub command: Vec<String>,
    /// The time in seconds after which the program is killed, with all its processes.
    pub seconds: u64,
    /// The memory limit in bytes of all its processes together.
    pub memory: Option<u64>,
    /// Settings to write before it starts: files below `/proc/sys` and `/sys`, and their values.
    pub settings: Vec<(String, String)>,
}

/// The way in which a program ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitKind {
    /// By itself, with this code.
    Code(i32),
    /// By a signal.
    Signal(i32),
    /// It took too long, and was killed.
    Late,
    /// It couldn't be started, or lacks a requirement, for this reason.
    Never(String),
}

/// A measurement or check that the guest performs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The workload's name, or [`CONFORMANCE`], or [`STRESS`].
    pub workload: String,
    /// The workload's file, if it isn't built in.
    pub file: Option<String>,
    /// Parameters that differ from the defaults, for example `pages=512`.
    pub parameters: Vec<String>,
    /// The number of CPUs that take part. If the machine has more, the others are idle.
    pub team: usize,
    /// The way in which one process passes the CPU to the next; only for workloads that do.
    pub handover: Handover,
    /// Whether invalidations are counted. Counting costs instructions, so we can't measure those at the same time.
    pub traced: bool,
}

/// The way a process passes its CPU to the next, without a call for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Handover {
    /// By `sched_yield` among real-time processes of equal priority: one call per switch.
    #[default]
    Yield,
    /// By a write to the next one's eventfd and a read from its own, as the published test did.
    Eventfd,
}

/// An event that the guest reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Linux has started.
    Linux {
        release: String,
        /// The number of CPUs that are online.
        cpus: usize,
    },
    /// A requirement of jobs is missing.
    Lacking { what: String, why: String },
    /// A job has run.
    Done {
        /// The job's place in the plan, from 0.
        job: usize,
        #[serde(flatten)]
        window: Window,
    },
    /// A check has run.
    Checked {
        /// The job's place in the plan, from 0.
        job: usize,
        name: String,
        /// The number of CPUs on which it failed.
        failures: u64,
        /// The finding, or the work done.
        saw: String,
    },
    /// A program is about to start.
    Starts {
        /// The program's place among the programs, from 0.
        program: usize,
        name: String,
    },
    /// A program has ended.
    Ended {
        /// The program's place among the programs, from 0.
        program: usize,
        how: ExitKind,
        /// The time that it took, in milliseconds.
        milliseconds: u64,
        /// The number of its parts that passed, by its output: lines that begin with `ok`, as in TAP.
        passed: u64,
        /// The names of parts that failed (lines that begin with `not ok`), some hundreds at most.
        failed: Vec<String>,
        /// The last lines of its output.
        last: Vec<String>,
    },
    /// The counts of the engine and of Linux since the machine started, one after the other. Sent only if the engine is
    /// on and shows its statistics.
    Counted {
        /// Linux's row `TLB` of `/proc/interrupts`, read before the engine's counts.
        before: String,
        /// The engine's counters, with a name and a number on each line.
        engine: String,
        /// The row `TLB` again.
        after: String,
    },
    /// A job could not run.
    Failed {
        /// The job's place in the plan, from 0.
        job: usize,
        why: String,
    },
    /// The guest is done.
    Exit {
        /// 0 if the guest followed the plan to its end.
        code: u64,
    },
}

/// The measurements of a job's window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The work done in the window, in the workload's unit.
    pub done: u64,
    /// The length of the window, in ticks of the time-stamp counter.
    pub ticks: u64,
    /// The counters when the window opened.
    pub before: Counters,
    /// The counters when it closed.
    pub after: Counters,
    /// The kernel's histogram of flushes in the window by reason and pages, if it was traced.
    pub flushes: String,
}

/// The kernel's counters at one moment, as the kernel prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// The row `CAL` of `/proc/interrupts`: function calls that arrived on each CPU, including Linux's own flushes.
    pub interrupts: String,
    /// The engine's counter `sent`, as a name and a number; empty without the engine.
    pub engine: String,
    /// Rows of `/proc/vmstat` that show whether the intended work was done.
    pub memory: String,
    /// The rows `.idle_sleeptime` of `/proc/timer_list`: the time that each CPU was idle, in nanoseconds.
    pub idle: String,
}
