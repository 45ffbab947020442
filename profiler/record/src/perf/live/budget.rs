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
    /// Returns the mode by which the cost of this phase is measured. While events are closed, no window is open.
    pub(super) fn mode(self, is_closing: bool) -> Mode {
        match self {
            Phase::Window => Mode::Window,
            Phase::Counting if is_closing => Mode::Closing,
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

    /// Simulates steps of 5 ms on two busy CPUs. Recording costs `price` of each step, and counting a hundredth of
    /// that.
    ///
    /// Returns the share of CPU time spent, and the share of time in which the window was open.
    fn simulated(share: f64, price: f64) -> (f64, f64) {
        let mut budget = Budget::new(share, 0);
        let mut phase = Phase::Window;
        let (mut spent, mut open) = (0.0, 0u64);
        let steps = 10_000;
        for step in 1..=steps {
            spent += 5e6
                * price
                * match phase {
                    Phase::Window => 1.0,
                    Phase::Counting => 0.01,
                    Phase::Off => 0.0,
                };
            open += u64::from(phase == Phase::Window);
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], [Some(machine), None], 0.0);
        }
        let open = open as f64 / steps as f64;
        (spent / (steps as f64 * 10e6), open)
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

    #[test]
    fn a_program_that_has_a_small_part_of_the_machine_bears_no_more_than_its_share() {
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase) = (0.0, Phase::Window);
        for step in 1..=10_000u64 {
            spent += f64::from(phase == Phase::Window) * 1e6;
            let program = (step * MS, spent as u64);
            let machine = (step * 10 * MS, spent as u64);
            let accounts = [Some(machine), Some(program)];
            phase = budget.turn(step * 5 * MS, accounts, accounts, 0.0);
        }
        assert!(spent < 0.022 * 10_000.0 * 1e6, "{spent}");
    }

    #[test]
    fn where_counting_costs_a_program_too_much_it_stops_though_the_machine_has_time() {
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase) = (0.0, Phase::Window);
        for step in 1..=10_000u64 {
            spent += f64::from(phase != Phase::Off) * 0.1e6;
            let program = (step * MS, spent as u64);
            let machine = (step * 100 * MS, spent as u64);
            let accounts = [Some(machine), Some(program)];
            phase = budget.turn(step * 5 * MS, accounts, accounts, 0.0);
        }
        assert!(spent < 0.022 * 10_000.0 * 1e6, "{spent}");
    }

    #[test]
    fn what_a_dear_window_has_overdrawn_is_paid_back_while_events_are_counted() {
        // Each step of a window costs ten times the CPU time of the step, and counting hardly anything.
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase) = (0.0, Phase::Window);
        for step in 1..=10_000u64 {
            spent += match phase {
                Phase::Window => 100e6,
                Phase::Counting => 0.01e6,
                Phase::Off => panic!("after {step} steps"),
            };
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], [Some(machine), None], 0.0);
        }
        assert!(spent < 0.03 * 10_000.0 * 10e6, "{spent}");
    }

    #[test]
    fn where_even_to_count_is_too_dear_nothing_is() {
        // Counting alone costs four times the limit.
        let (spent, _) = simulated(0.02, 16.0);
        assert!(spent < 0.025, "{spent}");
    }

    #[test]
    fn counting_goes_on_as_soon_as_it_is_paid_for_though_the_recorder_costs_too_much() {
        let mut budget = Budget::new(0.01, 0);
        let (mut phase, mut of_events, mut counted) = (Phase::Window, 0.0, 0);
        for step in 1..=10_000u64 {
            of_events += match phase {
                Phase::Window => 5e6,
                Phase::Counting => 0.3e6,
                Phase::Off => 0.0,
            };
            counted += u64::from(phase == Phase::Counting);
            // The recorder alone takes a tenth.
            let machine = Some((step * 10 * MS, step * MS + of_events as u64));
            let events = Some((step * 10 * MS, of_events as u64));
            phase = budget.turn(step * 5 * MS, [machine, None], [events, None], 0.0);
        }
        assert!(counted > 500, "{counted} of 10 000 steps");
        assert!(of_events < 0.011 * 10_000.0 * 10e6, "{of_events}");
    }

    #[test]
    fn a_recorder_that_looks_for_more_than_is_earned_counts_on() {
        let mut budget = Budget::new(0.01, 0);
        let mut phase = Phase::Window;
        for step in 1..=10_000u64 {
            // The machine is idle, so the recorder's own time is the only cost.
            let machine = Some((step * 10_000, step * 50_000));
            let events = Some((step * 10_000, 0));
            phase = budget.turn(step * 5 * MS, [machine, None], [events, None], 0.0);
            assert!(phase != Phase::Off, "after {step} steps");
        }
        assert_eq!(phase, Phase::Counting);
    }
}
