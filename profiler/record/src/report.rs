//! The result of an analysis: figures, and ten lines that summarize them.
//!
//! If only a part was recorded, we scale figures up to the whole recording. A time has a lower and an upper bound: the
//! time between the closest events inside it, and between the closest events around it. Such a time contains the cost
//! of recording these events, so it's an upper bound for an unrecorded program. No time contains the later cost of
//! caches and translations that the interrupt dropped.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::advise::Advice;
use crate::attribute::Weights;
use crate::figures::{Range, place};

/// The figures of one site.
#[derive(Clone, Debug, Default)]
pub struct SiteRow {
    /// The program.
    pub program: String,
    /// The threads that sent most of the interrupts, if their name isn't the program's. `worker-*` is several.
    pub thread: Option<String>,
    /// The call, or the kernel's own reason.
    pub call: String,
    /// The frames, innermost first.
    pub frames: Vec<String>,
    /// The number of system calls.
    pub calls: u64,
    /// The number of flushes, scaled from the recorded ones. At least the number needed to send the interrupts.
    pub requests: u64,
    /// Flushes that interrupted other CPUs.
    pub remote: u64,
    /// Interrupts: one for each flush and target CPU.
    pub interrupts: u64,
    /// Interrupts whose cost was recorded. The waits and the lost time are computed from these.
    pub timed: u64,
    /// Interrupts that were recorded with all events around them. Advice is based on these.
    pub whole: u64,
    /// The pages of all flushes that don't flush everything.
    pub pages: u64,
    /// Flushes of everything.
    pub full: u64,
    /// The time that initiators waited.
    pub initiator: Range,
    /// The time that targets lost.
    pub stolen: Range,
    /// The time that calls waited for `mmap_lock`, in nanoseconds.
    pub locked_ns: f64,
    /// Page faults in memory that calls from here gave back.
    pub refaults: u64,
    /// Waits and lost time as a share of the program's CPU time. Computed from the timed interrupts.
    ///
    /// `None` if no interrupt was timed or the CPU time isn't known.
    pub share: Option<Range>,
    /// Whether the kernel flushed for a reason of its own.
    pub kernel: bool,
}

impl SiteRow {
    /// Returns the program's name, with that of its threads in brackets.
    pub fn program_and_thread(&self) -> String {
        let thread = self.thread.as_ref();
        thread.map_or_else(|| self.program.clone(), |thread| format!("{} ({thread})", self.program))
    }

    /// Returns the frame that identifies the site best.
    pub fn place(&self) -> &str {
        place(self.frames.iter().map(String::as_str))
    }
}

/// The figures of one program.
#[derive(Clone, Debug, Default)]
pub struct ProgramRow {
    /// Its name.
    pub name: String,
    /// Its CPU time in nanoseconds, if that's known. Excludes the cost of recording, if the host's prices are known.
    pub cpu_ns: Option<f64>,
    /// Interrupts that it sent.
    pub sent: u64,
    /// Sent interrupts whose cost was recorded.
    pub timed: u64,
    /// Interrupts that it took.
    pub taken: u64,
    /// The time that it waited for its targets. The fewer interrupts were timed, the wider the range.
    pub waited: Range,
    /// The time that it lost as a target.
    pub stolen: Range,
    /// `waited` plus `stolen` as a share of its CPU time.
    ///
    /// `None` if its CPU time isn't known, if it has no known cost, or if it sent interrupts and none was timed.
    pub share: Option<Range>,
}

/// Interrupts that call functions other than a TLB flush.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OtherRow {
    /// The part of the kernel that sends them.
    pub cause: &'static str,
    /// The kernel's functions with their counts.
    pub functions: Vec<(String, u64)>,
    /// The number of interrupts.
    pub count: u64,
    /// Their total time in nanoseconds. `None` if one of the functions was never recorded with its time.
    pub ns: Option<f64>,
    /// The time that their callers waited in nanoseconds, where that was recorded.
    pub caller_ns: Option<f64>,
}

/// The result of an analysis.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The lines of the answer.
    pub answer: Vec<String>,
    /// Sites, by falling number of interrupts.
    pub sites: Vec<SiteRow>,
    /// Programs, by falling cost.
    pub programs: Vec<ProgramRow>,
    /// Other interrupts that call functions.
    pub others: Vec<OtherRow>,
    /// Interrupts between programs: sender, target, count.
    pub matrix: Vec<(String, String, u64)>,
    /// Changes that would help.
    pub advice: Vec<Advice>,
    /// Whole stacks, folded, and their weights. Each has the program, then its frames from the outermost inwards.
    pub folded: BTreeMap<String, Weights>,
    /// Shootdown interrupts, from `/proc/interrupts` if it was read, otherwise from the recorded events.
    pub interrupts: u64,
    /// Shootdown interrupts that are attributed to a call or a reason.
    pub attributed: u64,
    /// Function-call interrupts, those of shootdowns among them: the row `CAL` of `/proc/interrupts`.
    pub function_calls: Option<u64>,
    /// Events that were lost.
    pub lost: u64,
    /// Events that were read.
    pub samples: u64,
    /// The number of CPUs.
    pub cpus: usize,
    /// The length of the recording in nanoseconds.
    pub ns: u64,
    /// The rate of interrupts over all the time, divided by their rate in the windows. It's often above 1, because
    /// recording slows a program down.
    pub pace: f64,
    /// The cost of a page fault on this host with its zeroing, if measured.
    pub fault_ns: Option<Range>,
    /// Notes on the figures.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns the figures as one JSON object. Its keys are stable.
    ///
    /// `stack` contains the site's frames, innermost first, and ends with the program's name in brackets. Times are in
    /// nanoseconds. `initiator_ns` is the lower bound of the waits, or the upper bound if no target's end was recorded.
    /// `stolen_ns` is the upper bound of the time that targets lost. Either is `null` if the recording lacks the events
    /// for it. `advice` lists changes. Each has bounds for the interrupts that remain, and the gain as a share of the
    /// program's CPU time if that's known.
    pub fn json(&self) -> Value {
        let sites: Vec<Value> = self
            .sites
            .iter()
            .map(|site| {
                let mut stack = site.frames.clone();
                stack.push(format!("[{}]", site.program));
                let told =
                    |ns: f64| (ns > 0.0 || site.interrupts == 0).then_some(ns.round() as u64);
                // If no target's end was recorded, the end of the call is the bound.
                let seen = site.initiator.least > 0.0;
                let waited = if seen { site.initiator.least } else { site.initiator.most };
                json!({
                    "stack": stack,
                    "call": site.call,
                    "thread": site.thread,
                    "requests": site.requests,
                    "interrupts": site.interrupts,
                    "pages": site.pages,
                    "full": site.full,
                    "initiator_ns": told(waited),
                    "stolen_ns": told(site.stolen.most),
                })
            })
            .collect();
        json!({
            "sites": sites,
            "interrupts": self.interrupts,
            "attributed": self.attributed,
            "lost": self.lost,
            "function_calls": self.function_calls,
            "others": self.others,
            "advice": self.advice,
        })
    }
}
