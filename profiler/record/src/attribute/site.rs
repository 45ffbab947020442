//! The sums for each place in a program.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::perf::{Flushes, Prices, Sample};

use super::bins::Bins;
use super::reuse::ReuseTimes;
use crate::stack::StackInfo;

/// A time that events enclose only loosely: bounds in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The lower bound.
    pub least: u64,
    /// The upper bound.
    pub most: u64,
}

impl Span {
    /// Adds another span.
    pub fn add(&mut self, least: u64, most: u64) {
        self.least += least;
        self.most += most.max(least);
    }
}

/// Recorded events by their stack: none, a walked one, or a copied one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events([u64; 3]);

impl Events {
    /// Counts one more event.
    pub fn count(&mut self, sample: &Sample) {
        // The recorder copies the stack with the first event of a flush.
        let kind = match (sample.stack.is_empty(), &*sample.event) {
            (true, _) => 0,
            (false, "tlb:tlb_flush") => 2,
            (false, _) => 1,
        };
        self.0[kind] += 1;
    }

    /// Adds others.
    pub fn add(&mut self, other: Events) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Returns the cost of these events for the threads that caused them, in nanoseconds.
    pub fn ns(&self, prices: &Prices) -> f64 {
        let each = self.0.iter().zip(prices.event_ns);
        each.map(|(&count, ns)| count as f64 * ns).sum()
    }
}

/// Returns a thread's name, with `*` in place of a number at its end.
pub(crate) fn kind_of_thread(name: &str) -> String {
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match kind.len() < name.len() && !kind.is_empty() {
        true => format!("{kind}*"),
        false => name.to_owned(),
    }
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
    /// Time that targets lost.
    pub stolen: Span,
    /// Time that initiators waited.
    pub waited: Span,
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
    /// The number of calls for each value of their argument `behavior` or `prot`.
    pub how: FxHashMap<u64, u64>,
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

    /// Creates a site that only the kernel's sum shows.
    pub(crate) fn of_sum(place: Place, asked: Option<Arc<str>>) -> Self {
        Site::new(place, &StackInfo::default(), asked)
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
        self.stolen.add(other.stolen.least, other.stolen.most);
        self.waited.add(other.waited.least, other.waited.most);
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
    pub fn fault_ns(&self, prices: Option<&Prices>) -> Option<(f64, f64)> {
        match (prices, self.refaults_timed) {
            (Some(prices), _) => Some(prices.fault_ns),
            (None, 0) => None,
            (None, timed) => Some((0.0, self.refault_ns as f64 / timed as f64)),
        }
    }

    /// Returns bounds for the time of all refaults. `None` if the time of one isn't known.
    pub fn refill_ns(&self, prices: Option<&Prices>) -> Option<(f64, f64)> {
        let refaults = self.refaults as f64;
        let each = self.fault_ns(prices);
        each.map(|(least, most)| (refaults * least, refaults * most))
    }

    /// Returns bounds for the time in calls, without waits and the cost of recording. The lower bound is 0 if the
    /// host's prices aren't known.
    pub fn serving_ns(&self, prices: Option<&Prices>) -> (f64, f64) {
        let all = self.call_ns as f64;
        let recording = prices.map_or(all, |prices| self.call_events.ns(prices));
        let without = |waited: u64, recording: f64| (all - waited as f64 - recording).max(0.0);
        (without(self.waited.most, recording), without(self.waited.least, recording.min(all / 2.0)))
    }
}
