//! Measures the cost of recording in the recorded programs, while it runs.
//!
//! Time is divided into turns with different work. In all of them the kernel sums flushes. In some it sums twice, in
//! others it also records events. For each turn we compute the programs' CPU time for one of their own flushes or page
//! faults. The difference between neighbouring turns is the cost of the extra work, including cache misses. A second
//! sum costs as much as the first, which gives the cost of summing itself. So the printed cost was measured in these
//! programs, and not estimated from the price of an event in a loop.

use quell_workloads::numbers::median;
use rustc_hash::FxHashMap;

/// The work in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The kernel sums.
    Sums,
    /// The kernel sums twice.
    Twice,
    /// The kernel sums, and all events are recorded.
    Window,
    /// The kernel sums, and closes events.
    Closing,
}

impl Mode {
    const ALL: usize = 4;
}

/// The work of each process until now.
pub(super) type Reading = FxHashMap<u32, WorkDone>;

/// The work of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkDone {
    pub(super) cpu_ns: u64,
    pub(super) flushes: u64,
    pub(super) faults: u64,
}

/// A stretch of time with constant work of the recorder.
#[derive(Clone, Copy, Debug)]
struct Turn {
    mode: Mode,
    begun_ns: u64,
    done: WorkDone,
}

/// The largest distance of compared turns. Further apart, the program may do something else.
const NEAR_NS: u64 = 1_000_000_000;
/// The least number of events in a turn by which we compare turns.
const ENOUGH: u64 = 30;
/// The largest error of a certain share. A share whose error exceeds this, and half of the share, counts with its lower
/// bound.
const CERTAIN: f64 = 0.02;
/// The least number of pairs for a certain share. Fewer may agree by chance.
const MANY: usize = 6;
/// The number of turns to keep.
const KEPT: usize = 512;

/// The measured cost of recording.
#[derive(Debug, Default)]
pub(super) struct Cost {
    before: Option<Reading>,
    turns: Vec<Turn>,
    /// CPU time in each mode.
    cpu_ns: [u64; Mode::ALL],
}

/// A measured share by which the programs' time grew, with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCost {
    /// The median of all pairs of turns.
    pub share: f64,
    /// Two standard errors.
    pub error: f64,
    /// The number of pairs.
    pub pairs: usize,
}

impl MeasuredCost {
    /// Returns the certain part of the share. On a busy host, turns may differ by more than the cost.
    fn certain(self) -> f64 {
        match self.pairs >= MANY && self.error <= CERTAIN.max(self.share / 2.0) {
            true => self.share.max(0.0),
            false => (self.share - self.error).max(0.0),
        }
    }
}

impl Cost {
    /// Ends a turn in this mode and begins the next. We count only processes that existed at both ends.
    pub(super) fn turn(&mut self, mode: Mode, begun_ns: u64, now: Reading) {
        if self.before.is_some() {
            let done = self.since(&now);
            self.cpu_ns[mode as usize] += done.cpu_ns;
            if self.turns.len() == KEPT {
                self.turns.remove(0);
            }
            self.turns.push(Turn {
                mode,
                begun_ns,
                done,
            });
        }
        self.before = Some(now);
    }

    /// Returns the work since the turn began, of processes that existed all the time.
    fn since(&self, now: &Reading) -> WorkDone {
        let mut done = WorkDone::default();
        for (pid, of) in now {
            if let Some(was) = self.before.as_ref().and_then(|before| before.get(pid)) {
                done.cpu_ns += of.cpu_ns.saturating_sub(was.cpu_ns);
                done.flushes += of.flushes.saturating_sub(was.flushes);
                done.faults += of.faults.saturating_sub(was.faults);
            }
        }
        done
    }

    /// Returns their CPU time in this turn.
    pub(super) fn ran_ns(&self, now: &Reading) -> u64 {
        self.since(now).cpu_ns
    }

    /// Begins a turn. Time since the end of the last turn belongs to none.
    pub(super) fn begin(&mut self, now: Reading) {
        self.before = Some(now);
    }

    /// Returns the cost of a mode relative to [`Mode::Sums`]. `None` if it isn't known yet.
    fn beside_sums(&self, mode: Mode) -> Option<MeasuredCost> {
        let kinds: [fn(&WorkDone) -> u64; 2] = [|done| done.flushes, |done| done.faults];
        let measured = kinds.iter().filter_map(|kind| self.by(mode, *kind));
        // The more regular kind of event has the smaller error.
        measured.min_by(|a, b| a.error.total_cmp(&b.error))
    }

    /// Returns that cost, measured by one kind of event.
    fn by(&self, mode: Mode, kind: fn(&WorkDone) -> u64) -> Option<MeasuredCost> {
        let each = |turn: &Turn| {
            let count = kind(&turn.done);
            (count >= ENOUGH).then(|| turn.done.cpu_ns as f64 / count as f64)
        };
        let mut ratios: Vec<f64> = Vec::new();
        for (at, turn) in self.turns.iter().enumerate() {
            let Some(taken) = each(turn).filter(|_| turn.mode == mode) else {
                continue;
            };
            // Find the nearest turn on each side.
            let near = |other: &&Turn| {
                other.mode == Mode::Sums && other.begun_ns.abs_diff(turn.begun_ns) < NEAR_NS
            };
            let before = self.turns[..at].iter().rev().find(near).and_then(each);
            let after = self.turns[at + 1..].iter().find(near).and_then(each);
            let sums = match (before, after) {
                (Some(before), Some(after)) => (before + after) / 2.0,
                (before, after) => match before.or(after) {
                    Some(sums) => sums,
                    None => continue,
                },
            };
            if sums > 0.0 {
                ratios.push(taken / sums - 1.0);
            }
        }
        if ratios.len() < 3 {
            return None;
        }
        let share = median(&mut ratios)?;
        let mut apart: Vec<f64> = ratios.iter().map(|ratio| (ratio - share).abs()).collect();
        // These factors hold for a normal distribution: the median absolute deviation, and the error of the median.
        let deviation = 1.4826 * median(&mut apart)?;
        Some(MeasuredCost {
            share,
            error: 2.0 * 1.2533 * deviation / (ratios.len() as f64).sqrt(),
            pairs: ratios.len(),
        })
    }

    /// Returns the cost of a mode relative to no recording.
    pub(super) fn of(&self, mode: Mode) -> Option<MeasuredCost> {
        let twice = self.beside_sums(Mode::Twice)?;
        // The measured ratio is (1 + 2 c) / (1 + c), where c is the cost of one sum.
        let once = (twice.share / (1.0 - twice.share).max(0.1)).max(0.0);
        let beside = match mode {
            Mode::Sums => MeasuredCost {
                share: 0.0,
                ..twice
            },
            Mode::Twice => twice,
            mode => self.beside_sums(mode)?,
        };
        Some(MeasuredCost {
            share: (1.0 + beside.share) * (1.0 + once) - 1.0,
            error: match mode {
                Mode::Sums => twice.error,
                _ => beside.error.hypot(twice.error),
            },
            pairs: beside.pairs.min(twice.pairs),
        })
    }

    /// Returns the CPU time that recording has taken until now. Windows count at least `window_ns`, the estimate from
    /// prices.
    pub(super) fn spent_ns(&self, window_ns: f64) -> f64 {
        let part = |mode: Mode| {
            let share = self.of(mode).map_or(0.0, MeasuredCost::certain);
            self.cpu_ns[mode as usize] as f64 * share / (1.0 + share)
        };
        // At first, few windows have been measured.
        let windows = part(Mode::Window).max(window_ns);
        let others = [Mode::Twice, Mode::Sums, Mode::Closing];
        windows + others.map(part).iter().sum::<f64>()
    }

    /// Returns the average cost of closing a window, given the number of closed `windows`.
    pub(super) fn closing_ns(&self, windows: u64) -> f64 {
        let share = self.of(Mode::Closing).map_or(0.0, MeasuredCost::certain);
        let each = self.cpu_ns[Mode::Closing as usize] as f64 / windows.max(1) as f64;
        each * share / (1.0 + share)
    }

    /// Returns the programs' CPU time in all turns.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.iter().sum()
    }

    /// Returns the total cost as a share of the programs' CPU time without recording. `None` if it wasn't measured.
    pub(super) fn overall(&self, window_ns: f64) -> Option<MeasuredCost> {
        let sums = self.of(Mode::Sums)?;
        let windows = self.of(Mode::Window);
        let all = self.cpu_ns().max(1) as f64;
        let (mut spent, mut error) = (0.0, 0.0);
        for mode in [Mode::Sums, Mode::Twice, Mode::Window, Mode::Closing] {
            let cpu_ns = self.cpu_ns[mode as usize] as f64;
            let of = self.of(mode).unwrap_or(sums);
            let took = cpu_ns * of.share.max(0.0) / (1.0 + of.share.max(0.0));
            spent += match mode {
                Mode::Window if windows.is_none() => window_ns,
                _ => took,
            };
            error += of.error * cpu_ns / all;
        }
        let rest = all - spent;
        (rest > 0.0).then(|| MeasuredCost {
            share: spent / rest,
            error,
            pairs: sums.pairs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a program that flushes every 4 us, and slows down by `more[mode]`.
    ///
    /// It drifts from turn to turn, and another process appears and disappears.
    fn played(more: [f64; Mode::ALL], noise: f64) -> Cost {
        let mut cost = Cost::default();
        let (mut done, mut state) = (WorkDone::default(), 1u64);
        let order = [Mode::Sums, Mode::Twice, Mode::Sums, Mode::Window];
        for turn in 0..200u32 {
            let mode = order[turn as usize % order.len()];
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let random = (state >> 33) as f64 / f64::from(1u32 << 31) - 0.5;
            let flushes = 5000.0 * (1.0 + random * noise);
            let each = 4000.0 * (1.0 + more[mode as usize]) * (1.0 + f64::from(turn) / 400.0);
            if turn > 0 {
                done.flushes += flushes as u64;
                done.cpu_ns += (flushes * each) as u64;
            }
            let mut now = Reading::default();
            now.insert(7, done);
            if turn % 2 == 0 {
                now.insert(8, WorkDone::default());
            }
            cost.turn(mode, u64::from(turn) * 25_000_000, now);
        }
        cost
    }

    #[test]
    fn what_a_mode_costs_is_found_though_the_program_changes() {
        let cost = played([0.05, 0.10, 0.40, 0.0], 0.5);
        for (mode, expected) in [
            (Mode::Sums, 0.05),
            (Mode::Twice, 0.10),
            (Mode::Window, 0.40),
        ] {
            let of = cost.of(mode).unwrap();
            assert!((of.share - expected).abs() < 0.01, "{mode:?}: {of:?}");
        }
        // Half of the turns are sums, and a quarter is of each other mode.
        let overall = cost.overall(0.0).unwrap();
        assert!((overall.share - 0.15).abs() < 0.02, "{overall:?}");
    }

    #[test]
    fn without_events_nothing_is_said() {
        let mut cost = Cost::default();
        for turn in 0..50u64 {
            let mut now = Reading::default();
            let cpu_ns = turn * 1_000_000;
            now.insert(
                7,
                WorkDone {
                    cpu_ns,
                    ..WorkDone::default()
                },
            );
            let mode = [Mode::Sums, Mode::Twice][turn as usize % 2];
            cost.turn(mode, turn * 25_000_000, now);
        }
        assert_eq!(cost.overall(0.0), None);
        assert_eq!(cost.spent_ns(5.0), 5.0);
    }
}
