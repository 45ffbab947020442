//! Measures the cost of recording in the recorded programs, while it runs.
//!
//! Time is divided into turns with different work. In most of them the kernel sums flushes. In some it sums twice, in
//! others it also records events. For each turn we compute each process's CPU time for one of its own flushes or page
//! faults. The difference between neighbouring turns is the cost of the extra work, including cache misses. We compare
//! each process with itself, because on a busy host another mix of processes runs in each turn. A second sum costs as
//! much as the first without its tracepoint, which gives the cost of summing itself. So the printed cost was measured in
//! these programs, and not estimated from the price of an event in a loop. Only the tracepoint's own cost is.

use quell_workloads::numbers::median;
use rustc_hash::FxHashMap;
use std::fmt;

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
    /// Nothing.
    Off,
}

impl Mode {
    const ALL: usize = 5;
}

/// The work of each process until now.
pub(super) type Reading = FxHashMap<u32, WorkDone>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkDone {
    pub(super) cpu_ns: u64,
    pub(super) flushes: u64,
    pub(super) faults: u64,
}

/// A stretch of time with constant work of the recorder.
#[derive(Clone, Debug)]
struct Turn {
    mode: Mode,
    begun_ns: u64,
    done: Reading,
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
    cpu_ns: [u64; Mode::ALL],
    flushes: [u64; Mode::ALL],
    /// The time that the kernel's programs take to sum a flush, by its own clock, or 0.
    pub(super) flush_ns: f64,
    /// The time that the tracepoint of a flush takes besides, measured in a loop before the recording.
    open_ns: f64,
}

/// A measured share by which the programs' time grew, with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCost {
    /// The median of all pairs of turns.
    pub share: f64,
    /// The true share is within this distance with a probability of 95 %; with fewer than six pairs, of 75 % or more.
    pub error: f64,
    /// The number of pairs.
    pub pairs: usize,
}

impl MeasuredCost {
    /// Returns whether the share is certain. On a busy host, turns may differ by more than the cost.
    pub fn is_certain(self) -> bool {
        self.pairs >= MANY && self.error <= CERTAIN.max(self.share / 2.0)
    }

    /// Returns the certain part of the share.
    fn certain(self) -> f64 {
        if self.is_certain() { self.share.max(0.0) } else { (self.share - self.error).max(0.0) }
    }
}

impl fmt::Display for MeasuredCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MeasuredCost { share, error, pairs } = self;
        write!(
            f,
            "{:.1} % (within {:.1}) in {pairs} pairs of turns with and without",
            share * 100.0,
            error * 100.0
        )
    }
}

impl Cost {
    /// Creates an account without turns. A flush takes `open_ns` longer if its tracepoint is open.
    pub(super) fn new(open_ns: f64) -> Self {
        Self { open_ns, ..Self::default() }
    }

    /// Ends a turn in this mode and begins the next. We count only processes that existed at both ends.
    pub(super) fn turn(&mut self, mode: Mode, begun_ns: u64, now: Reading) {
        if self.before.is_some() {
            let done = self.since(&now);
            self.cpu_ns[mode as usize] += done.values().map(|done| done.cpu_ns).sum::<u64>();
            self.flushes[mode as usize] += done.values().map(|done| done.flushes).sum::<u64>();
            if self.turns.len() == KEPT {
                self.turns.remove(0);
            }
            self.turns.push(Turn { mode, begun_ns, done });
        }
        self.before = Some(now);
    }

    /// Returns the work since the turn began, of processes that existed all the time.
    fn since(&self, now: &Reading) -> Reading {
        let since = |(pid, of): (&u32, &WorkDone)| {
            let was = self.before.as_ref()?.get(pid)?;
            let done = WorkDone {
                cpu_ns: of.cpu_ns.saturating_sub(was.cpu_ns),
                flushes: of.flushes.saturating_sub(was.flushes),
                faults: of.faults.saturating_sub(was.faults),
            };
            (done.cpu_ns > 0).then_some((*pid, done))
        };
        now.iter().filter_map(since).collect()
    }

    /// Returns the CPU time in this turn, by the `clock` of each process.
    pub(super) fn ran_ns(&self, clock: impl Fn(u32) -> Option<u64>) -> u64 {
        let ran = |(pid, was): (&u32, &WorkDone)| Some(clock(*pid)?.saturating_sub(was.cpu_ns));
        self.before.iter().flatten().filter_map(ran).sum()
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
        let mut ratios: Vec<f64> = Vec::new();
        for (at, turn) in self.turns.iter().enumerate() {
            if turn.mode != mode {
                continue;
            }
            // Find the nearest turn on each side.
            let near = |other: &&Turn| {
                other.mode == Mode::Sums && other.begun_ns.abs_diff(turn.begun_ns) < NEAR_NS
            };
            let before = self.turns[..at].iter().rev().find(near);
            let after = self.turns[at + 1..].iter().find(near);
            // The CPU time in this turn, and that of as many events of the same processes in the neighbours.
            let (mut took, mut expected, mut events) = (0.0, 0.0, 0);
            for (pid, done) in &turn.done {
                let count = kind(done);
                let each = |other: &Turn| {
                    let done = other.done.get(pid)?;
                    (kind(done) >= ENOUGH).then(|| done.cpu_ns as f64 / kind(done) as f64)
                };
                let neighbours: Vec<f64> =
                    [before, after].into_iter().flatten().filter_map(each).collect();
                if count < ENOUGH || neighbours.is_empty() {
                    continue;
                }
                took += done.cpu_ns as f64;
                expected += count as f64 * neighbours.iter().sum::<f64>() / neighbours.len() as f64;
                events += count;
            }
            if events > 0 && expected > 0.0 {
                ratios.push(took / expected - 1.0);
            }
        }
        if ratios.len() < 3 {
            return None;
        }
        // This sorts them.
        let share = median(&mut ratios)?;
        // The number of pairs below the true median is binomial. So these two pairs enclose it with 95 %, whatever the
        // distribution of turns is.
        let pairs = ratios.len();
        let below = ((pairs as f64 / 2.0 - 0.98 * (pairs as f64).sqrt()).floor().max(0.0)) as usize;
        Some(MeasuredCost {
            share,
            error: (ratios[pairs - 1 - below] - share).max(share - ratios[below]),
            pairs,
        })
    }

    /// Returns the cost of a mode relative to no recording.
    pub(super) fn of(&self, mode: Mode) -> Option<MeasuredCost> {
        let twice = self.beside_sums(Mode::Twice)?;
        // The first sum costs as much as the second, and the tracepoint. Both are shares of the time with one sum here.
        let sums = Mode::Sums as usize;
        let open = self.open_ns * self.flushes[sums] as f64 / self.cpu_ns[sums].max(1) as f64;
        let rest = (1.0 - twice.share - open).max(0.1);
        let once = ((twice.share + open) / rest).max(0.0);
        let once_error = twice.error / (rest * rest);
        let beside = match mode {
            Mode::Sums => MeasuredCost { share: 0.0, error: 0.0, ..twice },
            Mode::Twice => twice,
            Mode::Off => return None,
            mode => self.beside_sums(mode)?,
        };
        Some(MeasuredCost {
            share: (1.0 + beside.share) * (1.0 + once) - 1.0,
            error: (beside.error * (1.0 + once)).hypot(once_error * (1.0 + beside.share)),
            pairs: beside.pairs.min(twice.pairs),
        })
    }

    /// Returns the CPU time that recording has taken until now. Windows count at least `window_ns`, the estimate from
    /// prices.
    pub(super) fn spent_ns(&self, window_ns: f64) -> f64 {
        let part = |mode: Mode| {
            let share = self.of(mode).map_or(0.0, MeasuredCost::certain);
            let part = self.cpu_ns[mode as usize] as f64 * share / (1.0 + share);
            // Turns may differ by more than the cost. The kernel's clock doesn't count cache misses outside of programs.
            part.max(self.summing_ns(mode))
        };
        // At first, few windows have been measured.
        let windows = part(Mode::Window).max(window_ns + self.summing_ns(Mode::Window));
        let others = [Mode::Twice, Mode::Sums, Mode::Closing];
        windows + others.map(part).iter().sum::<f64>()
    }

    /// Returns the time of summing in a mode, by the kernel's clock.
    fn summing_ns(&self, mode: Mode) -> f64 {
        let times = if mode == Mode::Twice { 2.0 } else { 1.0 };
        (times * self.flush_ns + self.open_ns) * self.flushes[mode as usize] as f64
    }

    /// Returns the time of summing as a share of the programs' CPU time, by the kernel's clock.
    pub(super) fn summing_share(&self) -> f64 {
        let sums = Mode::Sums as usize;
        self.summing_ns(Mode::Sums) / self.cpu_ns[sums].max(1) as f64
    }

    /// Returns the average cost of closing a window, given the number of closed `windows`.
    pub(super) fn closing_ns(&self, windows: u64) -> f64 {
        let share = self.of(Mode::Closing).map_or(0.0, MeasuredCost::certain);
        let each = self.cpu_ns[Mode::Closing as usize] as f64 / windows.max(1) as f64;
        each * share / (1.0 + share)
    }

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
        (rest > 0.0).then(|| MeasuredCost { share: spent / rest, error, pairs: sums.pairs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a program that flushes every 4 us, and slows down by `more[mode]`.
    ///
    /// It drifts from turn to turn. Another process appears and disappears, and a third runs more in some turns.
    fn played(more: [f64; Mode::ALL], noise: f64) -> Cost {
        let mut cost = Cost::default();
        let (mut done, mut heavy, mut state) = (WorkDone::default(), WorkDone::default(), 1u64);
        let order = [Mode::Sums, Mode::Twice, Mode::Sums, Mode::Window];
        for turn in 0..200u32 {
            let mode = order[turn as usize % order.len()];
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
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
            // The third uses a hundred times the CPU time for a flush, so the sum over all processes tells nothing.
            // By chance it runs more in the turns that are compared with `Mode::Sums`.
            if turn > 0 {
                let runs = if mode == Mode::Sums { 50 } else { 100 };
                heavy.cpu_ns += (runs as f64 * 4e5 * (1.0 + more[mode as usize])) as u64;
                heavy.flushes += runs;
            }
            now.insert(9, heavy);
            cost.turn(mode, u64::from(turn) * 25_000_000, now);
        }
        cost
    }

    #[test]
    fn what_a_mode_costs_is_found_though_the_program_changes() {
        let cost = played([0.05, 0.10, 0.40, 0.0, 0.0], 0.5);
        for (mode, expected) in [(Mode::Sums, 0.05), (Mode::Twice, 0.10), (Mode::Window, 0.40)] {
            let of = cost.of(mode).unwrap();
            assert!((of.share - expected).abs() < 0.01, "{mode:?}: {of:?}");
        }
        // Half of the turns are sums, and a quarter is of each other mode.
        let overall = cost.overall(0.0).unwrap();
        assert!((overall.share - 0.15).abs() < 0.02, "{overall:?}");
    }

    #[test]
    fn the_first_sum_also_costs_the_tracepoint() {
        // A flush takes 5 us on average, and the third process as much time for few flushes. So the tracepoint takes 3 %.
        let mut cost = played([0.08, 0.13, 0.0, 0.0, 0.0], 0.0);
        let without = cost.of(Mode::Sums).unwrap().share;
        assert!((without - 0.05).abs() < 0.01, "{without}");
        cost.open_ns = 290.0;
        let of = cost.of(Mode::Sums).unwrap().share;
        assert!((of - 0.08).abs() < 0.01, "{of}");
        cost.flush_ns = 100.0;
        let flushes = cost.flushes[Mode::Sums as usize];
        assert_eq!(cost.summing_ns(Mode::Sums), 390.0 * flushes as f64);
    }

    #[test]
    fn a_share_is_certain_only_if_pairs_agree() {
        let quiet = played([0.05, 0.10, 0.40, 0.0, 0.0], 0.5).overall(0.0).unwrap();
        assert!(quiet.is_certain(), "{quiet}");
        // A program whose phases last for one turn: each pair shows another cost.
        let mut cost = Cost::default();
        let mut done = WorkDone::default();
        for turn in 0..16u64 {
            let mode = [Mode::Sums, Mode::Twice][turn as usize % 2];
            done.flushes += 1000;
            done.cpu_ns +=
                [2, 9, 3, 1, 7, 2, 1, 8, 5, 3, 2, 7, 8, 1, 4, 6][turn as usize] * 1_000_000;
            cost.turn(mode, turn * 25_000_000, Reading::from_iter([(7, done)]));
        }
        let varied = cost.overall(0.0).unwrap();
        assert!(!varied.is_certain(), "{varied}");
    }

    #[test]
    fn summing_costs_at_least_what_the_kernel_clocked() {
        // The fourth mode has no turns. The third process flushes less often, so both count.
        let mut cost = played([0.0; Mode::ALL], 0.0);
        assert_eq!(cost.spent_ns(5.0), 5.0);
        let flushes: u64 = cost.flushes.iter().sum();
        assert!(flushes > 199 * 5000, "{flushes}");
        cost.flush_ns = 100.0;
        let twice = cost.flushes[Mode::Twice as usize];
        assert_eq!(cost.spent_ns(5.0), 5.0 + 100.0 * (flushes + twice) as f64);
    }

    #[test]
    fn without_events_nothing_is_said() {
        let mut cost = Cost::default();
        for turn in 0..50u64 {
            let done = WorkDone { cpu_ns: turn * 1_000_000, ..WorkDone::default() };
            let now = Reading::from_iter([(7, done)]);
            let mode = [Mode::Sums, Mode::Twice][turn as usize % 2];
            cost.turn(mode, turn * 25_000_000, now);
        }
        assert_eq!(cost.overall(0.0), None);
        assert_eq!(cost.spent_ns(5.0), 5.0);
    }
}
