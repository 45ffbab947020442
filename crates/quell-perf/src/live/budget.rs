//! When to record and when only to count, so that recording costs no more than was allowed.
//!
//! The recorder may spend a share of what the machine's CPUs do. It spends its own CPU time and the
//! kernel's, which is the number of events by the price of one. When too much is spent the window closes and events
//! are only counted until enough has been done to pay for it; then it opens again. Whole stretches of time are recorded,
//! not every n-th event, so that an interrupt and what caused it are both there or both missing.

/// What was allowed, and what was spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The share that may be spent.
    share: f64,
    /// What may be spent before anything was earned.
    ahead_ns: f64,
    /// Whether events are recorded.
    open: bool,
    /// Since when.
    since_ns: u64,
}

/// What may be spent before anything was earned: the shortest recordings are whole. Of one second on one CPU it is 0.3 %.
const AHEAD_NS: f64 = 3e6;

/// A window that is open, or closed, stays so for as long: to change it interrupts every CPU.
const SHORTEST_NS: u64 = 5_000_000;

/// What a change between recording and counting should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Open,
    Close,
    Stay,
}

impl Budget {
    /// A budget of this share, whose window is open.
    pub(super) fn new(share: f64, now_ns: u64) -> Self {
        Self {
            share,
            ahead_ns: AHEAD_NS,
            open: true,
            since_ns: now_ns,
        }
    }

    /// What to do now, when the CPUs have done `busy_ns` apart from the recording, which has cost `spent_ns`.
    pub(super) fn turn(&mut self, now_ns: u64, busy_ns: u64, spent_ns: u64) -> Turn {
        if now_ns.saturating_sub(self.since_ns) < SHORTEST_NS {
            return Turn::Stay;
        }
        let left = self.share * busy_ns as f64 + self.ahead_ns - spent_ns as f64;
        // It opens for as much as it may spend at first: a window that closes at once shows little.
        let turn = match self.open {
            true if left < 0.0 => Turn::Close,
            false if left > self.ahead_ns / 2.0 => Turn::Open,
            _ => return Turn::Stay,
        };
        self.open = turn == Turn::Open;
        self.since_ns = now_ns;
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Steps of 5 ms on two busy CPUs, where recording costs `price` of each step and counting a tenth of it: what
    /// share was spent, and in what share of the time the window was open.
    fn simulated(share: f64, price: f64) -> (f64, f64) {
        let mut budget = Budget::new(share, 0);
        let (mut open, mut spent, mut recorded) = (true, 0.0, 0u64);
        let steps = 10_000;
        for step in 1..=steps {
            let cost = 5e6 * price;
            spent += if open { cost } else { cost / 10.0 };
            recorded += u64::from(open);
            match budget.turn(step * 5 * MS, step * 10 * MS, spent as u64) {
                Turn::Open => open = true,
                Turn::Close => open = false,
                Turn::Stay => {}
            }
        }
        (
            spent / (steps as f64 * 10e6),
            recorded as f64 / steps as f64,
        )
    }

    #[test]
    fn cheap_events_are_all_recorded() {
        let (spent, open) = simulated(0.02, 0.03);
        assert_eq!(open, 1.0);
        assert!(spent < 0.02, "{spent}");
    }

    #[test]
    fn dear_events_are_recorded_as_far_as_allowed() {
        let (spent, open) = simulated(0.02, 0.2);
        assert!((0.015..0.021).contains(&spent), "{spent}");
        assert!((0.05..0.5).contains(&open), "{open}");
    }
}
