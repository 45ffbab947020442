//! Interrupts between windows: the flushes that may be under way, and how long initiators waited for those that were timed.

use rustc_hash::FxHashMap;

/// By how much longer than until a target was done an initiator may have waited for it.
const AFTER: f64 = 1.25;

/// What was timed of a site's interrupts between windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Aside {
    /// How many flushes were seen to begin.
    pub flushes: u64,
    /// How many interrupts were timed.
    pub timed: u64,
    /// How long initiators waited for these at least, in nanoseconds: of a flush that asks several CPUs, a part for each.
    pub waited_ns: f64,
}

impl Aside {
    /// How long initiators waited at most.
    pub fn most_ns(self) -> f64 {
        self.waited_ns * AFTER
    }

    /// Adds another site's.
    pub fn add(&mut self, other: Aside) {
        self.flushes += other.flushes;
        self.timed += other.timed;
        self.waited_ns += other.waited_ns;
    }

    /// A part of it.
    pub fn part(self, part: f64) -> Aside {
        let whole = |count: u64| (count as f64 * part).round() as u64;
        Aside {
            flushes: whole(self.flushes),
            timed: whole(self.timed),
            waited_ns: self.waited_ns * part,
        }
    }
}

/// Flushes between windows that may be under way.
#[derive(Debug, Default)]
pub(super) struct Between {
    /// By the initiator's CPU.
    pub(super) flushes: FxHashMap<u32, Flush>,
    /// By the initiator's CPU: ends that are not confirmed.
    pub(super) ended: FxHashMap<u32, Vec<Ended>>,
    /// By the work and its target: on which CPU the initiator is, and when the flush began.
    pub(super) queued: FxHashMap<(u64, u32), (u32, u64)>,
}

/// The end of one target's part of a flush.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) site: usize,
    /// This part's share of the wait.
    pub(super) waited_ns: f64,
}

/// A flush that asks others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    pub(super) site: usize,
    pub(super) tid: u32,
    pub(super) began: u64,
    /// The last target, and when it was asked.
    pub(super) last: (u32, u64),
    pub(super) targets: u32,
}
