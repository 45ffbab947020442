//! What is added up for each place in a program.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::perf::{Flushes, Prices, Sample};

use super::bins::Bins;
use super::reuse::Reuse;
use crate::stack::StackInfo;

/// A time that was measured between events that do not quite enclose it: at least, at most, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// It took at least this.
    pub least: u64,
    /// It took at most this.
    pub most: u64,
}

impl Span {
    /// Adds another.
    pub fn add(&mut self, least: u64, most: u64) {
        self.least += least;
        self.most += most.max(least);
    }
}

/// Events that were recorded, by what their records carry: no stack, one that was walked, a copy of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events([u64; 3]);

impl Events {
    /// One more.
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

    /// What they cost the thread that ran into them, in nanoseconds.
    pub fn ns(&self, prices: &Prices) -> f64 {
        let each = self.0.iter().zip(prices.event_ns);
        each.map(|(&count, ns)| count as f64 * ns).sum()
    }
}

/// By which share what so many cost may be more or less, of whom only some were timed: two standard deviations of how
/// many of all that there were come to be timed, which is also what their mean cost deviates by if these costs differ
/// as much as they are large. 0 where all were timed; 2, so anything up to three times as much, where one of many was;
/// infinite where none was.
pub fn spread(timed: u64, all: f64) -> f64 {
    let missed = (1.0 - timed as f64 / all.max(1.0)).max(0.0);
    2.0 * (missed / timed as f64).sqrt()
}

/// Which call or part of the kernel, in which program, from where.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    /// The program's name.
    pub program: Arc<str>,
    /// The call, or the kernel's own reason.
    pub call: Arc<str>,
    /// The frames, innermost first.
    pub frames: Arc<[Arc<str>]>,
}

/// A site, and what was seen of it.
#[derive(Clone, Debug)]
pub struct Site {
    /// Where it is.
    pub place: Place,
    /// Whether the kernel did it for a reason of its own.
    pub kernel: bool,
    /// Whether the stack reaches a frame of the program's own.
    pub own: bool,
    /// System calls from here, with a flush or without.
    pub calls: u64,
    /// Flushes from here, with interrupts or without.
    pub requests: u64,
    /// Those that interrupted others.
    pub remote: u64,
    /// Those of a whole address space.
    pub full: u64,
    /// Pages of those that were not.
    pub pages: u64,
    /// Other CPUs that were asked: one for each and flush.
    pub interrupts: u64,
    /// Of these, those that were recorded with all that happened around them.
    pub whole: u64,
    /// Those that were recorded with what they cost; of the others, only who sent them.
    pub timed: u64,
    /// For how many of them what they cost is added up here, in as far as what the timed ones say stands for these.
    pub costed: u64,
    /// What a recorded interrupt from here stands for, and whatever else was recorded with it.
    pub weight: f64,
    /// The system call that asked for it, also where the kernel did it for a reason of its own.
    pub asked: Option<Arc<str>>,
    /// What the kernel added up of flushes from here, recorded or not.
    pub summed: Option<Flushes>,
    /// The same as `interrupts`, counted by the interrupts that carried a flush's stack, and by flushes seen on
    /// targets.
    pub by_interrupt: u64,
    /// See `by_interrupt`.
    pub by_target: u64,
    /// How often each CPU was hit.
    pub hit: Vec<u64>,
    /// How many of the interrupts were for memory that another site, by its number, had given back: to protect it
    /// otherwise, or to take a page of zeros out of it.
    pub given: BTreeMap<usize, u64>,
    /// Time that targets lost.
    pub stolen: Span,
    /// Time that initiators waited.
    pub waited: Span,
    /// Flushes whose wait could be seen.
    pub waits: u64,
    /// Waits for `mmap_lock` in calls from here, in nanoseconds, and how many.
    pub locked_ns: u64,
    /// See `locked_ns`.
    pub locks: u64,
    /// Time in calls from here.
    pub call_ns: u64,
    /// Events that were recorded during these calls.
    pub call_events: Events,
    /// Page faults in what calls from here had discarded, and their time where it was recorded.
    pub refaults: u64,
    /// See `refaults`.
    pub refault_ns: u64,
    /// Faults of which the time is known.
    pub refaults_timed: u64,
    /// How soon the ranges of calls were touched again.
    pub reuse: Reuse,
    /// Interrupts by how long before them the same thread had interrupted others from here.
    pub gaps: Bins,
    /// Of these, those whose range was touched again within that gap: putting them off would have been felt.
    pub hasty: Bins,
    /// Flushes whose range began where the one before ended, or ended where it began.
    pub adjacent: u64,
    /// Flushes that came after another from here in the same thread.
    pub followed: u64,
    /// How calls from here are made: `behavior`, `prot`, and how often.
    pub how: FxHashMap<u64, u64>,
    /// Bytes that calls gave back.
    pub bytes: u64,
    /// Of calls that unmapped what had been seen to be mapped: how many unmapped a file, and how many memory.
    pub files: u64,
    /// See `files`.
    pub memory: u64,
}

impl Site {
    /// A site of which nothing was seen yet.
    pub(crate) fn new(place: Place, told: &StackInfo, asked: Option<Arc<str>>) -> Self {
        Site {
            place,
            kernel: told.cause.is_some(),
            own: told.own,
            calls: 0,
            requests: 0,
            remote: 0,
            full: 0,
            pages: 0,
            interrupts: 0,
            whole: 0,
            timed: 0,
            costed: 0,
            weight: 1.0,
            asked,
            summed: None,
            by_interrupt: 0,
            by_target: 0,
            hit: Vec::new(),
            given: BTreeMap::new(),
            stolen: Span::default(),
            waited: Span::default(),
            waits: 0,
            locked_ns: 0,
            locks: 0,
            call_ns: 0,
            call_events: Events::default(),
            refaults: 0,
            refault_ns: 0,
            refaults_timed: 0,
            reuse: Reuse::default(),
            gaps: Bins::default(),
            hasty: Bins::default(),
            adjacent: 0,
            followed: 0,
            how: FxHashMap::default(),
            bytes: 0,
            files: 0,
            memory: 0,
        }
    }

    /// A site of which the kernel's sum alone is known.
    pub(crate) fn of_sum(place: Place, asked: Option<Arc<str>>) -> Self {
        Site::new(place, &StackInfo::default(), asked)
    }

    /// Adds what was seen of another, as far as a change that serves both is judged by it: flushes, what they cost, and
    /// the next limit.
    pub(crate) fn add(&mut self, other: &Site) {
        let all = self.estimate() + other.estimate();
        self.weight = all / (self.interrupts + other.interrupts).max(1) as f64;
        self.requests += other.requests;
        self.remote += other.remote;
        self.interrupts += other.interrupts;
        self.whole += other.whole;
        self.timed += other.timed;
        self.costed += other.costed;
        self.stolen.add(other.stolen.least, other.stolen.most);
        self.waited.add(other.waited.least, other.waited.most);
        self.locked_ns += other.locked_ns;
    }

    /// How many interrupts those that were recorded stand for.
    pub fn estimate(&self) -> f64 {
        self.interrupts as f64 * self.weight
    }

    /// What its interrupts cost initiators and targets, as it is added up, stands for what all did that there were: so
    /// many times as much. 0 where none was timed.
    pub fn stands_for(&self) -> f64 {
        match self.costed {
            0 => 0.0,
            costed => self.estimate() / costed as f64,
        }
    }

    /// By which share what all its interrupts cost may be more or less than what the timed ones say.
    pub fn spread(&self) -> f64 {
        spread(self.timed, self.estimate())
    }

    /// The time of a page fault, at least and at most: by the host's price; or, without one, from the refaults that
    /// were timed, which is an upper bound, because the event that ends it is in it. `None` if nothing tells.
    pub fn fault_ns(&self, prices: Option<&Prices>) -> Option<(f64, f64)> {
        match (prices, self.refaults_timed) {
            (Some(prices), _) => Some(prices.fault_ns),
            (None, 0) => None,
            (None, timed) => Some((0.0, self.refault_ns as f64 / timed as f64)),
        }
    }

    /// The time of all refaults, at least and at most; `None` if nothing tells.
    pub fn refill_ns(&self, prices: Option<&Prices>) -> Option<(f64, f64)> {
        let refaults = self.refaults as f64;
        let each = self.fault_ns(prices);
        each.map(|(least, most)| (refaults * least, refaults * most))
    }

    /// The time in calls from here, at least and at most, but for waits and for what recording them took; at least 0 if
    /// the host's prices are not known.
    pub fn serving_ns(&self, prices: Option<&Prices>) -> (f64, f64) {
        let all = self.call_ns as f64;
        let recording = prices.map_or(all, |prices| self.call_events.ns(prices));
        let without = |waited: u64, recording: f64| (all - waited as f64 - recording).max(0.0);
        (
            without(self.waited.most, recording),
            without(self.waited.least, recording.min(all / 2.0)),
        )
    }

    /// Counts a hit of that CPU.
    pub fn hits(&mut self, cpu: u32) {
        let cpu = cpu as usize;
        if self.hit.len() <= cpu {
            self.hit.resize(cpu + 1, 0);
        }
        self.hit[cpu] += 1;
    }
}
