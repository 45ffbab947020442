//! When to record what, so that recording costs no more than was allowed.
//!
//! The recorder may spend a share of what the machine's CPUs do. It spends its own CPU time and the kernel's, which is
//! the number of events by the price of one, and what it takes to start and stop them. The kernel's part, which hits
//! the programs that are recorded, may be no larger a share of what these do. When too much is spent the window closes,
//! and until enough has been done to pay for it, only the few events are recorded that say whose interrupts come
//! between windows; if these alone cost more than half of what is earned, they end, too, so that something is left for
//! the next window, and events are only counted; if even that costs more than is earned, nothing is for a while. What it
//! takes the recorder to look and to wait is no reason for that: it takes it whatever is recorded, and on a machine that
//! does little it is more than is earned. Then the window opens again. Whole stretches of time are recorded, not every
//! n-th event, so that an interrupt and what caused it are both there or both missing.

/// What is recorded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Everything.
    Window,
    /// What is wanted between windows.
    Between,
    /// Nothing; events are counted.
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
    /// Since when it has enough for a window that is not open, because nothing happens.
    armed_ns: Option<u64>,
    /// What was earned then beyond what events had cost; `None` before the first look.
    since_earned_ns: Option<f64>,
}

/// What may be spent before anything was earned: the shortest recordings are whole. Of one second on one CPU it is 0.3
/// %.
const AHEAD_NS: f64 = 3e6;

/// The part of what is earned that events between windows may cost.
const BETWEEN: f64 = 0.5;

/// A window waits for something to happen for so long. A program that flushes in bursts has paid for what was recorded
/// between windows in each of them, so that there is enough for a window as soon as a burst is over, and none would ever show
/// one.
const PATIENCE_NS: u64 = 3_000_000_000;

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
            armed_ns: None,
            since_earned_ns: None,
        }
    }

    /// What to record from now on. Each account says what was done apart from the recording, and what that has cost of
    /// it, in nanoseconds of CPU time: the machine's, and that of the programs which are recorded. The one that has
    /// least left counts. The same of the machine, and what events alone have cost it, decides what is recorded between
    /// windows. A window waits for a moment in which something happens (`stirring`), though not for long. To close a window
    /// costs so much again, which must be left then; and one that is dear to close is opened for something that is worth
    /// it.
    pub(super) fn turn(
        &mut self,
        now_ns: u64,
        accounts: [Option<(u64, u64)>; 2],
        events: (u64, u64),
        closing_ns: f64,
        stirring: bool,
    ) -> Phase {
        if now_ns.saturating_sub(self.since_ns) < SHORTEST_NS {
            return self.phase;
        }
        let left =
            |(done_ns, spent_ns)| self.share * done_ns as f64 + self.ahead_ns - spent_ns as f64;
        let left = accounts.into_iter().flatten().map(left);
        let left = left.fold(f64::INFINITY, f64::min);
        let (done_ns, spent_ns) = events;
        let earned = BETWEEN * self.share * done_ns as f64 - spent_ns as f64;
        let before = *self.since_earned_ns.get_or_insert(earned);
        let next = match self.phase {
            Phase::Window if left < closing_ns => Phase::Between,
            // It opens for as much as it may spend at first: a window that closes at once shows little.
            Phase::Between | Phase::Counting
                if left > self.ahead_ns / 2.0 + 2.5 * closing_ns
                    && (stirring
                        || now_ns.saturating_sub(*self.armed_ns.get_or_insert(now_ns))
                            >= PATIENCE_NS) =>
            {
                Phase::Window
            }
            // Even to count costs more than is earned.
            Phase::Counting if earned < before - 2.0 * self.ahead_ns => Phase::Off,
            Phase::Off if left > self.ahead_ns / 2.0 => Phase::Counting,
            // What a window has overdrawn is paid back between windows; if it grows there, that costs more than is
            // earned.
            Phase::Between if earned < before - 2.0 * self.ahead_ns => Phase::Counting,
            same => same,
        };
        if next != self.phase {
            self.phase = next;
            self.since_ns = now_ns;
            self.armed_ns = None;
            self.since_earned_ns = Some(earned);
        }
        next
    }

    /// Whether it only waits for something to happen.
    pub(super) fn is_armed(&self) -> bool {
        self.armed_ns.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Steps of 5 ms on two busy CPUs, where recording costs `price` of each step, what is recorded between windows a
    /// tenth of that, and counting a hundredth: what share was spent, and in what share of the time the window was
    /// open, and anything was recorded.
    fn simulated(share: f64, price: f64) -> (f64, f64, f64) {
        let mut budget = Budget::new(share, 0);
        let mut phase = Phase::Window;
        let (mut spent, mut open, mut recorded) = (0.0, 0u64, 0u64);
        let steps = 10_000;
        for step in 1..=steps {
            spent += 5e6
                * price
                * match phase {
                    Phase::Window => 1.0,
                    Phase::Between => 0.1,
                    Phase::Counting => 0.01,
                    Phase::Off => 0.0,
                };
            open += u64::from(phase == Phase::Window);
            recorded += u64::from(matches!(phase, Phase::Window | Phase::Between));
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0, true);
        }
        let share = |count: u64| count as f64 / steps as f64;
        (spent / (steps as f64 * 10e6), share(open), share(recorded))
    }

    #[test]
    fn cheap_events_are_all_recorded() {
        let (spent, open, _) = simulated(0.02, 0.03);
        assert_eq!(open, 1.0);
        assert!(spent < 0.02, "{spent}");
    }

    #[test]
    fn dear_events_are_recorded_as_far_as_allowed() {
        let (spent, open, recorded) = simulated(0.02, 0.2);
        assert!((0.015..0.021).contains(&spent), "{spent}");
        assert!((0.05..0.5).contains(&open), "{open}");
        assert_eq!(recorded, 1.0);
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
            phase = budget.turn(step * 5 * MS, accounts, machine, 0.0, true);
        }
        assert!(spent < 0.022 * 10_000.0 * 1e6, "{spent}");
    }

    #[test]
    fn what_a_dear_window_has_overdrawn_is_paid_back_without_losing_what_lies_between() {
        // Each step of a window costs twenty times what the CPUs do in it; between windows hardly anything.
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase) = (0.0, Phase::Window);
        for step in 1..=10_000u64 {
            spent += match phase {
                Phase::Window => 100e6,
                Phase::Between => 0.01e6,
                Phase::Counting | Phase::Off => panic!("after {step} steps"),
            };
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0, true);
        }
        assert!(spent < 0.03 * 10_000.0 * 10e6, "{spent}");
    }

    #[test]
    fn a_window_that_is_dear_to_close_is_open_for_longer_and_leaves_what_that_costs() {
        let closing = 40e6;
        let mut budget = Budget::new(0.02, 0);
        let (mut spent, mut phase, mut closed, mut open) = (0.0, Phase::Window, 0, 0);
        for step in 1..=10_000u64 {
            open += u64::from(phase == Phase::Window);
            spent += 5e6 * if phase == Phase::Window { 0.2 } else { 0.001 };
            let machine = (step * 10 * MS, spent as u64);
            let next = budget.turn(step * 5 * MS, [Some(machine), None], machine, closing, true);
            if phase == Phase::Window && next != Phase::Window {
                closed += 1;
                spent += closing;
            }
            phase = next;
        }
        let share = spent / (10_000.0 * 10e6);
        assert!((0.015..0.021).contains(&share), "{share}");
        // Each is worth more than what it costs to close it: 40 ms at 1 ms for a step.
        assert!(
            closed > 1 && open / closed >= 40,
            "{open} steps in {closed}"
        );
    }

    #[test]
    fn where_even_what_lies_between_windows_is_too_dear_it_is_only_counted() {
        let (spent, open, recorded) = simulated(0.02, 0.8);
        assert!((0.015..0.023).contains(&spent), "{spent}");
        assert!(open > 0.0, "{open}");
        assert!((0.1..0.9).contains(&recorded), "{recorded}");
    }

    #[test]
    fn where_even_to_count_is_too_dear_nothing_is() {
        // To count alone costs four times what is allowed.
        let (spent, _, _) = simulated(0.02, 16.0);
        assert!(spent < 0.025, "{spent}");
    }

    #[test]
    fn a_recorder_that_looks_for_more_than_is_earned_records_what_lies_between() {
        let mut budget = Budget::new(0.01, 0);
        let mut phase = Phase::Window;
        for step in 1..=10_000u64 {
            // A machine that does nothing: the recorder's own time is all that is spent.
            let machine = Some((step * 10_000, step * 50_000));
            phase = budget.turn(
                step * 5 * MS,
                [machine, None],
                (step * 10_000, 0),
                0.0,
                true,
            );
            assert!(phase != Phase::Counting, "after {step} steps");
        }
        assert_eq!(phase, Phase::Between);
    }

    #[test]
    fn a_window_opens_in_the_bursts_of_a_program_and_not_only_when_they_are_over() {
        // Of each second, 100 ms are full of events that cost more than is earned in them; a window costs a tenth of its time.
        let mut budget = Budget::new(0.01, 0);
        let (mut spent, mut phase, mut caught, mut quiet) = (0.0, Phase::Window, 0, 0);
        for step in 1..=20_000u64 {
            let burst = step % 200 < 20;
            let of_events = if burst { 0.6e6 } else { 0.0 };
            match phase {
                Phase::Window => {
                    spent += 0.5e6 + of_events;
                    caught += u64::from(burst);
                    quiet += u64::from(!burst);
                }
                Phase::Between => spent += of_events,
                Phase::Counting | Phase::Off => {}
            }
            let machine = (step * 10 * MS, spent as u64);
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0, burst);
        }
        // By chance it would be one of ten.
        assert!(caught > quiet, "{caught} in bursts, {quiet} beside them");
        assert!(spent < 0.011 * 20_000.0 * 10e6, "{spent}");
    }

    #[test]
    fn a_window_does_not_wait_for_ever() {
        let mut budget = Budget::new(0.01, 0);
        let (mut phase, mut opened, mut spent) = (Phase::Window, 0, 0.0);
        for step in 1..=4000u64 {
            spent += f64::from(phase == Phase::Window) * 2e6;
            let machine = (step * 10 * MS, spent as u64);
            let before = phase;
            phase = budget.turn(step * 5 * MS, [Some(machine), None], machine, 0.0, false);
            opened += u64::from(before != Phase::Window && phase == Phase::Window);
        }
        // In 20 s, three and what it takes to earn a window apart.
        assert!(opened >= 5, "{opened}");
    }
}
