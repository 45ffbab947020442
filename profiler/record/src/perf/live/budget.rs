//! Opens and closes the recording window, to keep the cost of recording within its limit.
//!
//! The limit is a share of the CPU time of the machine, and of the recorded programs. The cost has two parts: the
//! recorder's own CPU time, and the time that recording takes from programs, measured or estimated.
//!
//! * If the cost is too high, we close the window. Then events are only summed or counted, until the limit allows more.
//! * If counting alone costs too much, we stop that, too. The recorder's own time doesn't count here. It doesn't depend
//!   on what is recorded, and on an idle machine it exceeds any share.
//!
//! We record whole stretches of time rather than every n-th event, so that an interrupt and its cause are both recorded
//! or both missing.

use super::cost::Mode;

/// The level of recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everything.
    #[default]
    Window,
    /// Sums or counts alone.
    Counting,
    /// Nothing.
    Off,
}

impl Phase {
    /// Returns the mode by which the cost of this phase is measured. While events are being closed, no window is open.
    pub(super) fn mode(self, is_closing: bool) -> Mode {
        match self {
            Phase::Window => Mode::Window,
            Phase::Counting | Phase::Off if is_closing => Mode::Closing,
            Phase::Counting => Mode::Sums,
            Phase::Off => Mode::Off,
        }
    }
}

/// The limit on the cost, and the current phase.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Budget {
    /// The share of CPU time that may be spent.
    share: f64,
    /// CPU time that may be spent in advance.
    ahead_ns: f64,
    phase: Phase,
    /// The time at which the phase began.
    since_ns: u64,
    /// The balance of counting at that time. `None` before the first reading.
    since_earned_ns: Option<f64>,
}

/// The CPU time that may be spent in advance: 3 ms. With it, short recordings are whole.
const AHEAD_NS: f64 = 3e6;

/// The part of the limit that counting may cost.
const COUNTING: f64 = 0.5;

/// The shortest phase. Each change interrupts every CPU.
const SHORTEST_NS: u64 = 5_000_000;

impl Budget {
    /// Creates a budget with this share and an open window.
    pub(super) fn new(share: f64, now_ns: u64) -> Self {
        Self {
            share,
            ahead_ns: AHEAD_NS,
            phase: Phase::Window,
            since_ns: now_ns,
            since_earned_ns: None,
        }
    }

    /// Closes the window early.
    pub(super) fn pause(&mut self, now_ns: u64) -> Phase {
        self.phase = Phase::Counting;
        self.since_ns = now_ns;
        self.since_earned_ns = None;
        self.phase
    }

    /// Chooses the next phase.
    ///
    /// `accounts` are those of the machine and of the recorded programs. Each has the CPU time without the recording,
    /// and the CPU time that the recording has cost. The account with the least left decides on the window. `events` are
    /// the same accounts without the recorder's own time. They decide on counting.
    ///
    /// Closing a window costs `closing_ns`. So we close it while that much is left, and open one only when clearly more
    /// is left.
    pub(super) fn turn(
        &mut self,
        now_ns: u64,
        accounts: [Option<(u64, u64)>; 2],
        events: [Option<(u64, u64)>; 2],
        closing_ns: f64,
    ) -> Phase {
        if now_ns.saturating_sub(self.since_ns) < SHORTEST_NS {
            return self.phase;
        }
        let left =
            |(done_ns, spent_ns)| self.share * done_ns as f64 + self.ahead_ns - spent_ns as f64;
        let left = accounts.into_iter().flatten().map(left);
        let left = left.fold(f64::INFINITY, f64::min);
        let earned = |(done_ns, spent_ns)| COUNTING * self.share * done_ns as f64 - spent_ns as f64;
        let earned = events.into_iter().flatten().map(earned);
        let earned = earned.fold(f64::INFINITY, f64::min);
        let before = *self.since_earned_ns.get_or_insert(earned);
        let next = match self.phase {
            Phase::Window if left < closing_ns => Phase::Counting,
            // A window that closes at once shows little, so we wait until there is something to spend.
            Phase::Counting if left > self.ahead_ns / 2.0 + 2.5 * closing_ns => Phase::Window,
            // While counting, the budget recovers from a window. If it shrinks instead, counting costs too much.
            Phase::Counting if earned < before - 2.0 * self.ahead_ns => Phase::Off,
            // The budget has recovered since then, without the recorder's own time.
            Phase::Off if earned > before + 2.0 * self.ahead_ns => Phase::Counting,
            same => same,
        };
        if next != self.phase {
            self.phase = next;
            self.since_ns = now_ns;
            self.since_earned_ns = Some(earned);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const STEPS: u64 = 10_000;

    /// Simulates steps of 5 ms. Recording costs `costs` of a step in a window, and while counting; the recorder itself
    /// takes `own_ns`. In a step the machine, and the recorded programs if given, run for these times.
    ///
    /// Returns the cost without the recorder's own time, and the number of steps in each phase.
    fn simulated(
        share: f64,
        costs: [f64; 2],
        own_ns: u64,
        (machine_ns, programs_ns): (u64, Option<u64>),
    ) -> (f64, [u64; 3]) {
        let mut budget = Budget::new(share, 0);
        let (mut phase, mut spent, mut steps) = (Phase::Window, 0.0, [0; 3]);
        for step in 1..=STEPS {
            let [window, counting] = costs;
            let (at, cost) = match phase {
                Phase::Window => (0, window),
                Phase::Counting => (1, counting),
                Phase::Off => (2, 0.0),
            };
            steps[at] += 1;
            spent += cost;
            let machine = Some((step * machine_ns, step * own_ns + spent as u64));
            let programs = programs_ns.map(|ns| (step * ns, spent as u64));
            let events = Some((step * machine_ns, spent as u64));
            phase = budget.turn(step * 5 * MS, [machine, programs], [events, programs], 0.0);
        }
        (spent, steps)
    }

    #[test]
    fn as_much_is_recorded_as_is_allowed() {
        let (two, program) = ((10 * MS, None), Some(MS));
        // Each case has the limit, costs and times; then the bounds of the cost as a share of the program's time, or of
        // the machine's; of the steps with a window; and of those with a window or counts.
        for (share, costs, own_ns, ns, spent, open, counted) in [
            // Cheap events are all recorded, and expensive ones as far as allowed.
            (0.02, [0.15e6, 0.0015e6], 0, two, 0.01..0.02, STEPS..=STEPS, STEPS..=STEPS),
            (0.02, [1e6, 0.01e6], 0, two, 0.015..0.021, 500..=5_000, STEPS..=STEPS),
            // A program with a small part of the machine bears no more than its share, even if counting must stop.
            (0.02, [1e6, 0.0], 0, (10 * MS, program), 0.0..0.022, 1..=STEPS, 1..=STEPS),
            (0.02, [0.1e6, 0.1e6], 0, (100 * MS, program), 0.0..0.022, 1..=STEPS, 1..=STEPS),
            // A window that costs ten times its own length is paid back while events are counted.
            (0.02, [100e6, 0.01e6], 0, two, 0.0..0.03, 1..=STEPS, STEPS..=STEPS),
            // Counting alone costs four times the limit.
            (0.02, [80e6, 0.8e6], 0, two, 0.0..0.025, 1..=STEPS, 1..=STEPS),
            // Counting continues once it's paid for, though the recorder alone takes a tenth. On an idle machine, the
            // recorder is the only cost.
            (0.01, [5e6, 0.3e6], MS, two, 0.0..0.011, 1..=STEPS, 600..=STEPS),
            (0.01, [0.0, 0.0], 50_000, (10_000, None), 0.0..0.01, 1..=100, STEPS..=STEPS),
        ] {
            let (cost, [window, counting, _]) = simulated(share, costs, own_ns, ns);
            let cost = cost / (STEPS * ns.1.unwrap_or(ns.0)) as f64;
            let case = format!("{costs:?}, {own_ns}, {ns:?}: {cost}, {window}, {counting}");
            assert!(spent.contains(&cost) && open.contains(&window), "{case}");
            assert!(counted.contains(&(window + counting)), "{case}");
        }
    }
}
