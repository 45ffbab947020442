//! Computes the cost of recording for the recorded programs, while it runs.
//!
//! Time is divided into turns with different work. In most of them the kernel sums flushes. In windows all events are
//! recorded, too, and after a window they are being closed. For each turn we compute each process's CPU time for one of
//! its own flushes or page faults. The difference between neighbouring turns is the cost of the extra work, including
//! cache misses. We compare each process with itself, because on a busy host another mix of processes runs in each turn.
//! If turns differ too much, we use the price of an event instead.
//!
//! No turn is without sums, because without them nothing counts a program's flushes. So the cost of sums is their number
//! times the cost of one ([`adding`](super::adding)).

use quell_workloads::numbers::median;
use rustc_hash::FxHashMap;

/// The work in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The kernel sums.
    Sums,
    /// The kernel sums, and all events are recorded.
    Window,
    /// The kernel sums, and closes events, which are open but disabled.
    Closing,
    /// Nothing.
    Off,
}

impl Mode {
    const ALL: usize = 4;
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
/// The cost of an event that is open, but disabled, relative to a recorded one.
const DISABLED: f64 = 1.0 / 16.0;
/// The number of turns to keep.
const KEPT: usize = 512;

/// The measured cost of recording.
#[derive(Debug, Default)]
pub(super) struct Cost {
    before: Option<Reading>,
    turns: Vec<Turn>,
    cpu_ns: [u64; Mode::ALL],
}

/// A measured share by which the programs' time grew, with its error.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeasuredCost {
    /// The median of all pairs of turns.
    share: f64,
    /// The true share is within this distance with a probability of 95 %; with fewer than six pairs, of 75 % or more.
    error: f64,
    /// The number of pairs.
    pairs: usize,
}

impl MeasuredCost {
    /// Returns whether the share is certain. On a busy host, turns may differ by more than the cost.
    fn is_certain(self) -> bool {
        self.pairs >= MANY && self.error <= CERTAIN.max(self.share / 2.0)
    }

    /// Returns the certain part of the share.
    fn least(self) -> f64 {
        if self.is_certain() { self.share.max(0.0) } else { (self.share - self.error).max(0.0) }
    }
}

impl Cost {
    /// Ends a turn in this mode and begins the next. We count only processes that existed at both ends.
    pub(super) fn turn(&mut self, mode: Mode, begun_ns: u64, now: Reading) {
        if self.before.is_some() {
            let done = self.since(&now);
            self.cpu_ns[mode as usize] += done.values().map(|done| done.cpu_ns).sum::<u64>();
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

    /// Measures the cost of a mode relative to [`Mode::Sums`]. Returns `None` if there are too few turns.
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

    /// Returns the costs of windows, and of closing them, besides the sums. By the number of events, windows cost
    /// `window_ns`.
    fn windows_ns(&self, window_ns: f64) -> [f64; 2] {
        let [open, closing] =
            [Mode::Window, Mode::Closing].map(|mode| self.cpu_ns[mode as usize] as f64);
        let part = |cpu_ns: f64, share: f64| cpu_ns * share / (1.0 + share);
        // Processes that live shorter than a turn have events, but no time here.
        let in_windows = match self.beside_sums(Mode::Window) {
            Some(measured) if measured.is_certain() => part(open, measured.least()),
            Some(measured) => part(open, measured.least()).max(window_ns),
            None => window_ns,
        };
        let share = in_windows / (open - in_windows).max(in_windows * DISABLED).max(1.0);
        let expected = share * DISABLED;
        let closed = match self.beside_sums(Mode::Closing) {
            Some(measured) if measured.is_certain() => measured.least(),
            Some(measured) => measured.least().max(expected),
            None => expected,
        };
        [in_windows, part(closing, closed)]
    }

    /// Returns the CPU time that windows, and closing them, have taken until now.
    pub(super) fn spent_ns(&self, window_ns: f64) -> f64 {
        self.windows_ns(window_ns).iter().sum()
    }

    /// Returns the average cost of closing a window, given the number of closed `windows`.
    pub(super) fn closing_ns(&self, window_ns: f64, windows: u64) -> f64 {
        let [_, closing] = self.windows_ns(window_ns);
        closing / windows.max(1) as f64
    }

    /// Returns the number of pairs of turns by which the cost of windows was measured. `None` if it wasn't.
    pub(super) fn pairs(&self) -> Option<usize> {
        let measured = self.beside_sums(Mode::Window)?;
        measured.is_certain().then_some(measured.pairs)
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
        let order = [Mode::Sums, Mode::Window, Mode::Closing, Mode::Sums];
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
    fn what_windows_cost_is_found_though_the_program_changes() {
        let cost = played([0.0, 0.40, 0.10, 0.0], 0.5);
        for (mode, expected) in [(Mode::Window, 0.40), (Mode::Closing, 0.10)] {
            let of = cost.beside_sums(mode).unwrap();
            assert!((of.share - expected).abs() < 0.01, "{mode:?}: {of:?}");
        }
        // The number of events doesn't matter then.
        let cpu_ns = |mode: Mode| cost.cpu_ns[mode as usize] as f64;
        let expected = cpu_ns(Mode::Window) * 0.4 / 1.4 + cpu_ns(Mode::Closing) * 0.1 / 1.1;
        for window_ns in [0.0, 1e6, 1e12] {
            let spent = cost.spent_ns(window_ns);
            assert!((spent / expected - 1.0).abs() < 0.1, "{spent} for {expected}");
        }
        assert_eq!(cost.pairs(), Some(50));
        let each = cost.closing_ns(0.0, 50) * 50.0 / cpu_ns(Mode::Closing);
        assert!((each - 0.1 / 1.1).abs() < 0.02, "{each}");
    }

    #[test]
    fn what_pairs_do_not_show_costs_its_price() {
        // A program whose phases last for one turn: each pair shows another cost.
        let mut cost = Cost::default();
        let mut done = WorkDone::default();
        for turn in 0..48u64 {
            let mode = [Mode::Sums, Mode::Window, Mode::Closing][turn as usize % 3];
            done.flushes += 1000;
            done.cpu_ns +=
                [2, 9, 3, 1, 7, 2, 1, 8, 5, 3, 2, 7, 8, 1, 4, 6][turn as usize % 16] * 1_000_000;
            cost.turn(mode, turn * 25_000_000, Reading::from_iter([(7, done)]));
        }
        assert_eq!(cost.pairs(), None);
        // Windows take half of their time, as much as the program. While they are closed, a sixteenth of that.
        let [open, closing] =
            [Mode::Window, Mode::Closing].map(|mode| cost.cpu_ns[mode as usize] as f64);
        let spent = cost.spent_ns(open / 2.0);
        assert!((spent - open / 2.0 - closing / 17.0).abs() < 1.0, "{spent}");
    }

    #[test]
    fn without_turns_windows_cost_their_price() {
        let mut cost = Cost::default();
        assert_eq!(cost.spent_ns(5.0), 5.0);
        for turn in 0..50u64 {
            let done = WorkDone { cpu_ns: turn * 1_000_000, ..WorkDone::default() };
            let mode = [Mode::Sums, Mode::Closing][turn as usize % 2];
            cost.turn(mode, turn * 25_000_000, Reading::from_iter([(7, done)]));
        }
        assert_eq!((cost.pairs(), cost.spent_ns(0.0)), (None, 0.0));
    }
}
