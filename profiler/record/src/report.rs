//! What is said of a recording: figures, and ten lines that answer the question.
//!
//! Figures are of the recording, made larger where only a part was recorded and the rest counted. A time is given as
//! *at least* and *at most*: between the events that lie inside of it and those that lie around it. The cost of these
//! events themselves is in the times that they enclose, so all times are upper bounds for a program that is not
//! recorded, and none of them holds what a program loses after an interrupt to caches and translations that
//! were dropped.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::advise::Advice;
use crate::attribute::Weight;
use crate::figures::{Range, place};

/// What was seen of one site.
#[derive(Clone, Debug, Serialize)]
pub struct SiteRow {
    /// The program.
    pub program: String,
    /// The call, or the kernel's own reason.
    pub call: String,
    /// The frames, innermost first.
    pub frames: Vec<String>,
    /// System calls.
    pub calls: u64,
    /// Flushes: as many as were recorded stand for, and at least as many as it takes to send the interrupts.
    pub requests: u64,
    /// Those that interrupted others.
    pub remote: u64,
    /// Interrupts, one for each CPU that was asked.
    pub interrupts: u64,
    /// How many of these were recorded with what they cost: what initiators waited and targets lost is known from them.
    pub timed: u64,
    /// Of these, those that were recorded with all that happened around them: what would help is known from them.
    pub whole: u64,
    /// Pages of flushes that named them.
    pub pages: u64,
    /// Flushes of everything.
    pub full: u64,
    /// What initiators waited.
    pub initiator: Range,
    /// What targets lost.
    pub stolen: Range,
    /// What calls waited for `mmap_lock`, in nanoseconds.
    pub locked_ns: f64,
    /// Page faults in what was given back here.
    pub refaults: u64,
    /// Their time, in nanoseconds, if the host's price of one is known, or they were timed.
    pub refault_ns: Option<Range>,
    /// How often each CPU was hit.
    pub hit: Vec<u64>,
    /// Waits and lost time as a share of the program's CPU time, as far as those interrupts tell that were timed; `None`
    /// if none was, or the CPU time is not known.
    pub share: Option<Range>,
    /// Whether the kernel did it for a reason of its own.
    pub kernel: bool,
}

impl SiteRow {
    /// The frame that tells most.
    pub fn place(&self) -> &str {
        place(self.frames.iter().map(String::as_str))
    }
}

/// What was seen of one program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramRow {
    /// Its name.
    pub name: String,
    /// Its time on CPUs, if that is known, in nanoseconds; without what recording took of it, where the host's prices
    /// are known.
    pub cpu_ns: Option<f64>,
    /// Interrupts that it sent.
    pub sent: u64,
    /// How many of these were recorded with what they cost.
    pub timed: u64,
    /// Interrupts that it took.
    pub taken: u64,
    /// What it waited for its targets: the wider, the fewer were timed, and at most all that the kernel did for it if
    /// those that were not timed are many.
    pub waited: Range,
    /// What it lost as a target.
    pub stolen: Range,
    /// Both, as a share of its CPU time; `None` if that is not known, or if nothing was timed.
    pub share: Option<Range>,
}

/// Interrupts that were no shootdowns.
#[derive(Clone, Debug, Serialize)]
pub struct OtherRow {
    /// Whose they are.
    pub cause: &'static str,
    /// The kernel's functions, with how often.
    pub functions: Vec<(String, u64)>,
    /// How often.
    pub count: u64,
    /// How long, in nanoseconds; `None` if none of some function's was recorded with its time.
    pub ns: Option<f64>,
    /// How long those waited whose calls sent them, in nanoseconds, where that was recorded.
    pub caller_ns: Option<f64>,
}

/// A recording, understood.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The lines that answer the question.
    pub answer: Vec<String>,
    /// Sites, those with most interrupts first.
    pub sites: Vec<SiteRow>,
    /// Programs, those that pay most first.
    pub programs: Vec<ProgramRow>,
    /// Other interrupts that call functions.
    pub others: Vec<OtherRow>,
    /// Interrupts between programs: sender, target, how often.
    pub matrix: Vec<(String, String, u64)>,
    /// The same by CPU.
    pub cpu_matrix: Vec<(u32, u32, u64)>,
    /// What would help.
    pub advice: Vec<Advice>,
    /// Whole stacks, folded: program and frames from outside in, and what they weigh.
    #[serde(skip)]
    pub folded: BTreeMap<String, Weight>,
    /// Shootdown interrupts: what `/proc/interrupts` says, or else what was recorded.
    pub interrupts: u64,
    /// Those laid at a call or a reason.
    pub attributed: u64,
    /// Interrupts that call functions and are no shootdowns, as the row `CAL` of `/proc/interrupts` counts them.
    pub function_calls: Option<u64>,
    /// Events that were lost.
    pub lost: u64,
    /// Events that were read.
    pub samples: u64,
    /// How many CPUs there are.
    pub cpus: usize,
    /// How long was recorded, in nanoseconds.
    pub ns: u64,
    /// How many times faster interrupts came than where they were recorded: recording slows a program down.
    pub pace: f64,
    /// What a page fault costs on the host, with the zeroing in it, if that was measured.
    pub fault_ns: Option<Range>,
    /// What else a reader should know.
    pub notes: Vec<String>,
}

impl Report {
    /// The figures as one JSON object, whose keys stay what they are.
    ///
    /// `stack` is the site, innermost frame first, and ends with the program's name in brackets. Times are in
    /// nanoseconds: `initiator_ns` is at least what initiators waited, `stolen_ns` what the interrupts took on their
    /// targets; `null` where the recording has no events that tell. `advice` is what is advised, with the interrupts
    /// that each piece leaves (at least, at most) and the share of the program's CPU time that it wins, if that is
    /// known.
    pub fn json(&self) -> Value {
        let sites: Vec<Value> = self
            .sites
            .iter()
            .map(|site| {
                let mut stack = site.frames.clone();
                stack.push(format!("[{}]", site.program));
                let told =
                    |ns: f64| (ns > 0.0 || site.interrupts == 0).then_some(ns.round() as u64);
                // Where no target's end was seen, the call's is.
                let seen = site.initiator.least > 0.0;
                let waited = if seen {
                    site.initiator.least
                } else {
                    site.initiator.most
                };
                json!({
                    "stack": stack,
                    "call": site.call,
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
