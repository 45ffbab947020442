//! What is added up beside the sites: programs, work that was no flush, the weight of stacks, and which events there
//! were to tell by.

use std::sync::Arc;

use super::site::{Events, Span};

/// From so many recorded interrupts on, their number tells of what else happened.
pub const ENOUGH: u64 = 50;

/// How interrupts were told to be shootdowns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// By the work that was queued for the target.
    Queued,
    /// By the stack of the interrupt that was sent.
    Sent,
    /// By flushes on targets, laid at the CPU that had asked for them by time and size.
    Received,
    /// There was nothing to tell by.
    Nothing,
}

/// A program: all processes of one name.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its name.
    pub name: Arc<str>,
    /// Its time on CPUs, in nanoseconds; 0 if context switches were not recorded.
    pub cpu_ns: u64,
    /// The time that its threads lost as targets, to any sender.
    pub stolen: Span,
    /// Interrupts that it took.
    pub taken: u64,
    /// The same by the kernel's sums, where it has any, and the nanoseconds of their work.
    pub summed: (u64, u64),
    /// Waits for `mmap_lock` outside of calls that flush, in nanoseconds.
    pub locked_ns: u64,
    /// Page faults.
    pub faults: u64,
    /// Of these, those of processes that were forked meanwhile, have loaded no other program, and have ended.
    pub forked_faults: u64,
    /// Whether a process of it was seen to fork.
    pub forked: bool,
    /// Whether the source told of a process of it: where the recording is about some processes, of these alone.
    pub told: bool,
    /// Events that were recorded while it ran.
    pub events: Events,
}

/// Work that CPUs did for others and that was no flush.
#[derive(Clone, Copy, Debug, Default)]
pub struct Function {
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds.
    pub ns: u64,
}

/// What a stack weighs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weight {
    /// Interrupts sent.
    pub interrupts: u64,
    /// Nanoseconds that targets lost.
    pub stolen_ns: u64,
    /// Nanoseconds that initiators waited.
    pub waited_ns: u64,
}

/// Which events a recording has.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventKinds {
    /// `csd_queue_cpu`, of whatever.
    pub queued: bool,
    /// An interrupt sent with a flush on the stack.
    pub sent: bool,
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
