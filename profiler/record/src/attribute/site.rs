//! The sums for each place in a program, and for each program.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::perf::{Flushes, Prices, Sample};

use super::reuse::{Bins, ReuseTimes};
use crate::figures::Range;
use crate::stack::StackInfo;

/// Recorded events by their stack: none, a walked one, or a copied one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events([u64; 3]);

impl Events {
    /// Counts one more event of this kind.
    pub fn count(&mut self, kind: usize) {
        self.0[kind] += 1;
    }

    /// Returns the kind of an event in a recording.
    pub fn kind(sample: &Sample) -> usize {
        // The recorder copies the stack with the first event of a flush.
        match (sample.stack.is_empty(), &*sample.event) {
            (true, _) => 0,
            (false, "tlb:tlb_flush") => 2,
            (false, _) => 1,
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: Events) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Returns the cost of these events for the threads that caused them, in nanoseconds, by the cost of each kind.
    pub fn ns(&self, event_ns: [f64; 3]) -> f64 {
        let each = self.0.iter().zip(event_ns);
        each.map(|(&count, ns)| count as f64 * ns).sum()
    }
}

/// Returns a thread's name, with `*` in place of a number at its end.
pub(crate) fn kind_of_thread(name: &str) -> String {
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if kind.len() < name.len() && !kind.is_empty() { format!("{kind}*") } else { name.to_owned() }
}

/// Estimates the relative error of a total cost of which `timed` parts were measured.
///
/// It's two standard deviations of the number of timed parts. The mean cost varies as much if costs differ by about
/// their own size. The result is 0 if all were timed, about 2 (up to three times as much) for one of many, and infinite
/// for none.
pub fn spread(timed: u64, all: f64) -> f64 {
    let missed = (1.0 - timed as f64 / all.max(1.0)).max(0.0);
    2.0 * (missed / timed as f64).sqrt()
}

/// The origin of flushes: a program, a call or kernel reason, and the frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Place {
    /// The program's name.
    pub program: Arc<str>,
    /// The call, or the kernel's own reason.
    pub call: Arc<str>,
    /// The frames, innermost first.
    pub frames: Arc<[Arc<str>]>,
}

/// A site and its sums.
#[derive(Clone, Debug, Default)]
pub struct Site {
    /// The origin of its flushes.
    pub place: Place,
    /// Whether the kernel caused it for a reason of its own.
    pub kernel: bool,
    /// System calls from here, with a flush or without.
    pub calls: u64,
    /// Flushes from here, with interrupts or without.
    pub requests: u64,
    /// Flushes that interrupted other CPUs.
    pub remote: u64,
    /// Flushes of a whole address space.
    pub full: u64,
    /// The pages of all other flushes.
    pub pages: u64,
    /// Interrupts that were sent: one for each flush and target.
    pub interrupts: u64,
    /// Interrupts that were recorded together with all events around them.
    pub whole: u64,
    /// Interrupts whose cost was recorded. Of the others only the sender is known.
    pub timed: u64,
    /// The number of real interrupts for each recorded one. We use it for everything else that was recorded with it,
    /// too.
    pub weight: f64,
    /// The system call around the flush, even if the kernel had its own reason.
    pub asked: Option<Arc<str>>,
    /// The kernel's sums of flushes from here, recorded or not.
    pub summed: Option<Flushes>,
    /// Interrupts, counted by flushes that were seen on targets.
    pub by_target: u64,
    /// Interrupts for memory that another site had given back, by that site's index.
    ///
    /// They change the protection of that memory, or replace a page of zeros in it.
    pub given: BTreeMap<usize, u64>,
    /// Recorded interrupts by the name of the thread that sent them.
    pub threads: FxHashMap<Arc<str>, u64>,
    /// Time that targets lost, in nanoseconds.
    pub stolen: Range,
    /// Time that initiators waited.
    pub waited: Range,
    /// Time in waits for `mmap_lock` in calls from here, in nanoseconds.
    pub locked_ns: u64,
    /// Time in calls from here.
    pub call_ns: u64,
    /// Events that were recorded during these calls.
    pub call_events: Events,
    /// Page faults in memory that calls from here had given back.
    pub refaults: u64,
    /// The sum of the squares of the refaults of each range.
    pub refaults_squared: u64,
    /// Refaults by the time since the memory was given back. Those of memory that was given back in an earlier window are
    /// missing, because we don't know whether it was given back once more in between.
    pub refills: Bins,
    /// The time of those refaults that were timed, in nanoseconds.
    pub refault_ns: u64,
    /// The number of refaults that were timed.
    pub refaults_timed: u64,
    /// The times until ranges of its calls were touched again.
    pub reuse: ReuseTimes,
    /// Interrupts by the time since the same thread's last interrupt from here.
    pub gaps: Bins,
    /// Interrupts whose range was touched again within that gap. Deferring these would have delayed the program.
    pub hasty: Bins,
    /// Flushes whose range touches the range of the flush before.
    pub adjacent: u64,
    /// Flushes that came after another from here in the same thread.
    pub followed: u64,
    /// Calls of `madvise` with `MADV_DONTNEED`.
    pub dontneed: u64,
    /// Bytes that calls gave back.
    pub bytes: u64,
    /// Calls that gave memory back at addresses that the recording doesn't show.
    pub unplaced: u64,
    /// Calls that unmapped a file, of those whose mapping was recorded.
    pub files: u64,
    /// Calls that unmapped anonymous memory, of those whose mapping was recorded.
    pub memory: u64,
}

impl Site {
    /// Creates a site with empty sums.
    pub(crate) fn new(place: Place, told: &StackInfo, asked: Option<Arc<str>>) -> Self {
        Site { place, kernel: told.cause.is_some(), weight: 1.0, asked, ..Site::default() }
    }

    /// Adds another site's sums, as far as a change for both depends on them.
    ///
    /// These are flushes, their cost, and the next limit.
    pub(crate) fn add(&mut self, other: &Site) {
        let all = self.estimate() + other.estimate();
        self.weight = all / (self.interrupts + other.interrupts).max(1) as f64;
        self.requests += other.requests;
        self.remote += other.remote;
        self.interrupts += other.interrupts;
        self.whole += other.whole;
        self.timed += other.timed;
        self.stolen = self.stolen.plus(other.stolen);
        self.waited = self.waited.plus(other.waited);
        self.locked_ns += other.locked_ns;
    }

    /// Returns the name of the threads that sent most interrupts, unless it's the program's.
    ///
    /// Threads that differ by a number at the end have a common name: `worker-*`.
    pub fn thread(&self) -> Option<String> {
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for (name, count) in &self.threads {
            *kinds.entry(kind_of_thread(name)).or_default() += count;
        }
        let all: u64 = kinds.values().sum();
        let (most, count) = kinds.into_iter().max_by_key(|(_, count)| *count)?;
        (2 * count > all && most != *self.place.program).then_some(most)
    }

    /// Estimates the real number of interrupts from the recorded ones.
    pub fn estimate(&self) -> f64 {
        self.interrupts as f64 * self.weight
    }

    /// Returns the relative error of the cost of all interrupts. See [`spread`].
    pub fn spread(&self) -> f64 {
        spread(self.timed, self.estimate())
    }

    /// Returns the effective number of ranges that were filled again. Ranges of unequal size count as fewer.
    pub fn refilled_ranges(&self) -> f64 {
        (self.refaults as f64).powi(2) / self.refaults_squared.max(1) as f64
    }

    /// Returns bounds for the time of a page fault, by the host's price.
    ///
    /// Without a price, the mean of the timed refaults is an upper bound, because it contains the event that ends it.
    /// Returns `None` if neither is known.
    pub fn fault_ns(&self, prices: Option<&Prices>) -> Option<Range> {
        match (prices, self.refaults_timed) {
            (Some(prices), _) => Some(prices.fault_ns),
            (None, 0) => None,
            (None, timed) => {
                Some(Range { least: 0.0, most: self.refault_ns as f64 / timed as f64 })
            }
        }
    }

    /// Returns bounds for the time of all refaults. `None` if the time of one isn't known.
    pub fn refill_ns(&self, prices: Option<&Prices>) -> Option<Range> {
        Some(self.fault_ns(prices)?.times(self.refaults as f64))
    }

    /// Returns bounds for the time in calls, without waits and the cost of recording. The lower bound is 0 if the
    /// host's prices aren't known.
    pub fn serving_ns(&self, prices: Option<&Prices>) -> Range {
        let all = self.call_ns as f64;
        let recording = prices.map_or(all, |prices| self.call_events.ns(prices.event_ns));
        let without = |waited: f64, recording: f64| (all - waited - recording).max(0.0);
        Range {
            least: without(self.waited.most, recording),
            most: without(self.waited.least, recording.min(all / 2.0)),
        }
    }
}

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
    pub stolen: Range,
    /// Interrupts that its threads took.
    pub taken: u64,
    /// Interrupts that it took by the kernel's sums, and their work in nanoseconds. Zero without such sums.
    pub summed: (u64, u64),
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

/// The weights of a stack: interrupts sent, nanoseconds that targets lost, and nanoseconds that initiators waited.
pub type Weights = [u64; 3];

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
    /// Stacks.
    pub stacks: bool,
    /// `tlb_flush`.
    pub flushes: bool,
    /// `mmap_lock`.
    pub locks: bool,
}
