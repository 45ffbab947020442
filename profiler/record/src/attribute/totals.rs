//! Sums beside the sites: programs, other work, weights of stacks, and kinds of events.

use std::sync::Arc;

use super::site::{Events, Span};

/// The least number of recorded interrupts that can represent all others.
pub const ENOUGH: u64 = 50;

/// The method by which we recognize interrupts as shootdowns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// By the work that was queued for the target.
    Queued,
    /// By flushes on targets, matched with an initiator by time and size.
    Received,
    /// No evidence was recorded.
    Nothing,
}

/// A program: all processes of one name.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its name.
    pub name: Arc<str>,
    /// Its CPU time in nanoseconds. 0 if context switches weren't recorded.
    pub cpu_ns: u64,
    /// The time that its threads lost as targets, to any sender.
    pub stolen: Span,
    /// Interrupts that its threads took.
    pub taken: u64,
    /// Interrupts that it took by the kernel's sums, and their work in nanoseconds. Zero without such sums.
    pub summed: (u64, u64),
    /// Waits for `mmap_lock` outside of calls that flush, in nanoseconds.
    pub locked_ns: u64,
    /// Page faults.
    pub faults: u64,
    /// Page faults of its short-lived forks: forked during the recording, without `execve`, and ended.
    pub forked_faults: u64,
    /// Whether one of its processes was seen to fork.
    pub forked: bool,
    /// Whether the source named one of its processes. A recording of chosen processes names only those.
    pub told: bool,
    /// Events that were recorded while it ran.
    pub events: Events,
}

/// Work for other CPUs that was no flush.
#[derive(Clone, Copy, Debug, Default)]
pub struct Function {
    /// The number of runs.
    pub count: u64,
    /// The time in nanoseconds.
    pub ns: u64,
}

/// The weights of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// Interrupts sent.
    pub interrupts: u64,
    /// Nanoseconds that targets lost.
    pub stolen_ns: u64,
    /// Nanoseconds that initiators waited.
    pub waited_ns: u64,
}

/// The kinds of events that a recording has.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventKinds {
    /// `csd_queue_cpu` with any function.
    pub queued: bool,
    /// `csd_function_*` on a target.
    pub functions: bool,
    /// `call_function*`.
    pub interrupts: bool,
    /// `sched_switch`.
    pub switches: bool,
    /// System calls.
    pub calls: bool,
    /// Stacks.
    pub stacks: bool,
    /// `tlb_flush`.
    pub flushes: bool,
    /// `mmap_lock`.
    pub locks: bool,
    /// Page faults.
    pub faults: bool,
}
