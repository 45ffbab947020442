//! When to record what, so that recording costs no more than was allowed.
//!
//! The recorder may spend a share of what the machine's CPUs do. It spends its own CPU time and what recording takes of the
//! programs', measured or reckoned. The latter may be no larger a share of what these do. When too much is spent the window
//! closes, and until enough has been done to pay for it, events are only added up, or counted; if even that costs more than is
//! earned, nothing is for a while. What it takes the recorder to look and to wait is no reason for that: it takes it whatever
//! is recorded, and on a machine that does little it is more than is earned. Then the window opens again. Whole stretches of
//! time are recorded, not every n-th event, so that an interrupt and what caused it are both there or both missing.

/// What is recorded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everything.
    Window,
    /// Nothing; events are added up, or counted.
    Counting,
    /// Nothing, and nothing is counted.
    Off,
}

/// What was allowed, and what was spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The share that may be spent.
    share: f64,
    /// What may be spent before anything was earned.
    ahead_ns: f64,
    phase: Phase,
    /// Since when.
    since_ns: u64,
    /// What was earned then beyond what events had cost; `None` before the first look.
    since_earned_ns: Option<f64>,
}

/// What may be spent before anything was earned: the shortest recordings are whole. Of one second on one CPU it is 0.3
/// %.
const AHEAD_NS: f64 = 3e6;

/// The part of what is earned that counting may cost.
const COUNTING: f64 = 0.5;

/// A phase lasts so long at least: to change it interrupts every CPU.
const SHORTEST_NS: u64 = 5_000_000;

impl Budget {
    /// A budget of this share, whose window is open.
    pub(super) fn new(share: f64, now_ns: u64) -> Self {
        Self {
            share,
            ahead_ns: AHEAD_NS,
            phase: Phase::Window,
            since_ns: now_ns,
            since_earned_ns: None,
        }
    }

    /// Closes the window before what it may spend is spent.
    pub(super) fn pause(&mut self, now_ns: u64) -> Phase {
        self.phase = Phase::Counting;
        self.since_ns = now_ns;
        self.since_earned_ns = None;
        self.phase
    }

    /// What to record from now on. Each account says what was done apart from the recording, and what that has cost of
    /// it, in nanoseconds of CPU time: the machine's, and that of the programs which are recorded. The one that has
    /// least left counts. The same of the machine, and what recording has cost without the recorder's own time, decides
    /// whether events are counted. To close a window costs so much again, which must be left then; and one that is dear to close
    /// is opened for something that is worth it.
    pub(super) fn turn(
        &mut self,
        now_ns: u64,
        accounts: [Option<(u64, u64)>; 2],
        events: (u64, u64),
        closing_ns: f64,
    ) -> Phase {
        if now_ns.saturating_sub(self.since_ns) < SHORTEST_NS {
            return self.phase;
        }
        let left =
            |(done_ns, spent_ns)| self.share * done_ns as f64 + self.ahead_ns - spent_ns as f64;
        let left = accounts.into_iter().flatten().map(left);
        let left = left.fold(f64::INFINITY, f64::min);
        let (done_ns, spent_ns) = events;
        let earned = COUNTING * self.share * done_ns as f64 - spent_ns as f64;
        let before = *self.since_earned_ns.get_or_insert(earned);
        let next = match self.phase {
            Phase::Window if left < closing_ns => Phase::Counting,
            // It opens for as much as it may spend at first: a window that closes at once shows little.
            Phase::Counting if left > self.ahead_ns / 2.0 + 2.5 * closing_ns => Phase::Window,
            // What a window has overdrawn is paid back between windows; if it grows there, counting costs more than is earned.
            Phase::Counting if earned < before - 2.0 * self.ahead_ns => Phase::Off,
            // It is paid back by what was earned since, whatever the recorder itself takes.
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

    /// Steps of 5 ms on two busy CPUs, where recording costs `price` of each step, and counting a hundredth of that: what
    /// share was spent, and in what share of the time the window was open.
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
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0);
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
            phase = budget.turn(step * 5 * MS, [Some(machine), Some(program)], machine, 0.0);
        }
        assert!(spent < 0.022 * 10_000.0 * 1e6, "{spent}");
    }

    #[test]
    fn what_a_dear_window_has_overdrawn_is_paid_back_while_events_are_counted() {
        // Each step of a window costs twenty times what the CPUs do in it; to count hardly anything.
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase) = (0.0, Phase::Window);
        for step in 1..=10_000u64 {
            spent += match phase {
                Phase::Window => 100e6,
                Phase::Counting => 0.01e6,
                Phase::Off => panic!("after {step} steps"),
            };
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0);
        }
        assert!(spent < 0.03 * 10_000.0 * 10e6, "{spent}");
    }

    #[test]
    fn where_even_to_count_is_too_dear_nothing_is() {
        // To count alone costs four times what is allowed.
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
            let events = (step * 10 * MS, of_events as u64);
            phase = budget.turn(step * 5 * MS, [machine, None], events, 0.0);
        }
        assert!(counted > 500, "{counted} of 10 000 steps");
        assert!(of_events < 0.011 * 10_000.0 * 10e6, "{of_events}");
    }

    #[test]
    fn a_recorder_that_looks_for_more_than_is_earned_counts_on() {
        let mut budget = Budget::new(0.01, 0);
        let mut phase = Phase::Window;
        for step in 1..=10_000u64 {
            // A machine that does nothing: the recorder's own time is all that is spent.
            let machine = Some((step * 10_000, step * 50_000));
            phase = budget.turn(step * 5 * MS, [machine, None], (step * 10_000, 0), 0.0);
            assert!(phase != Phase::Off, "after {step} steps");
        }
        assert_eq!(phase, Phase::Counting);
    }
}
