//! What recording costs the programs that are recorded, measured while it runs.
//!
//! Time is cut into short turns. In most of them everything is open that a recording has open then; in some, less is. The
//! programs' CPU time for one of their own flushes or page faults, compared between turns that are near each other, says what
//! the difference costs them, caches and all. So what is printed was measured in these programs, not reckoned from the price of
//! an event in a loop.
//!
//! The flushes themselves are counted by a program that has its price, too. It is measured by running a second copy of it
//! in some turns.

use rustc_hash::FxHashMap;

/// What is open in a turn, beside the program that counts flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nothing.
    Bare,
    /// Its second copy.
    Twice,
    /// All that adds up in the kernel.
    Sums,
    /// That, and all events are recorded.
    Window,
    /// That, and the kernel closes events.
    Closing,
}

impl Mode {
    const ALL: usize = 5;
}

/// What processes have done until now, by process: nanoseconds of CPU time, flushes, page faults.
pub(super) type Reading = FxHashMap<u32, Done>;

/// What a process has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) cpu_ns: u64,
    pub(super) flushes: u64,
    pub(super) faults: u64,
}

/// A turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    mode: Mode,
    begun_ns: u64,
    done: Done,
}

/// Turns further apart than this are not compared: the program may do something else by then.
const NEAR_NS: u64 = 1_000_000_000;
/// A turn with fewer events of a kind says nothing by these.
const ENOUGH: u64 = 30;
/// What is less certain than this, and than half of itself, is not known.
const CERTAIN: f64 = 0.02;
/// How many turns are kept.
const KEPT: usize = 512;

/// The account of what recording costs.
#[derive(Debug, Default)]
pub(super) struct Cost {
    before: Option<Reading>,
    turns: Vec<Turn>,
    /// CPU time in each mode.
    cpu_ns: [u64; Mode::ALL],
}

/// A share that was measured: what the programs' time grew by, and between which bounds it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The median of all pairs of turns.
    pub share: f64,
    /// By how much that may be wrong: two standard errors.
    pub error: f64,
    /// How many pairs.
    pub pairs: usize,
}

impl Cost {
    /// A turn in this mode ends, and the next begins. What processes did that were there at both ends is in it.
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

    /// What processes have done since the turn began that were there all the time.
    fn since(&self, now: &Reading) -> Done {
        let mut done = Done::default();
        for (pid, of) in now {
            if let Some(was) = self.before.as_ref().and_then(|before| before.get(pid)) {
                done.cpu_ns += of.cpu_ns.saturating_sub(was.cpu_ns);
                done.flushes += of.flushes.saturating_sub(was.flushes);
                done.faults += of.faults.saturating_sub(was.faults);
            }
        }
        done
    }

    /// How long they have run in this turn.
    pub(super) fn ran_ns(&self, now: &Reading) -> u64 {
        self.since(now).cpu_ns
    }

    /// A turn begins; what was since the last one's end is in none.
    pub(super) fn begin(&mut self, now: Reading) {
        self.before = Some(now);
    }

    /// What a mode costs beside a bare turn; `None` if that is not known yet.
    fn beside_bare(&self, mode: Mode) -> Option<Measured> {
        let kinds: [fn(&Done) -> u64; 2] = [|done| done.flushes, |done| done.faults];
        let measured = kinds.iter().filter_map(|kind| self.by(mode, *kind));
        // What comes as regularly as time does says most.
        measured.min_by(|a, b| a.error.total_cmp(&b.error))
    }

    /// The same by one kind of event.
    fn by(&self, mode: Mode, kind: fn(&Done) -> u64) -> Option<Measured> {
        let each = |turn: &Turn| {
            let count = kind(&turn.done);
            (count >= ENOUGH).then(|| turn.done.cpu_ns as f64 / count as f64)
        };
        let mut ratios: Vec<f64> = Vec::new();
        for (at, turn) in self.turns.iter().enumerate() {
            let Some(taken) = each(turn).filter(|_| turn.mode == mode) else {
                continue;
            };
            // The nearest bare turns, one on each side.
            let near = |other: &&Turn| {
                other.mode == Mode::Bare && other.begun_ns.abs_diff(turn.begun_ns) < NEAR_NS
            };
            let before = self.turns[..at].iter().rev().find(near).and_then(each);
            let after = self.turns[at + 1..].iter().find(near).and_then(each);
            let bare = match (before, after) {
                (Some(before), Some(after)) => (before + after) / 2.0,
                (before, after) => match before.or(after) {
                    Some(bare) => bare,
                    None => continue,
                },
            };
            if bare > 0.0 {
                ratios.push(taken / bare - 1.0);
            }
        }
        if ratios.len() < 3 {
            return None;
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let share = middle(&ratios);
        let mut apart: Vec<f64> = ratios.iter().map(|ratio| (ratio - share).abs()).collect();
        apart.sort_unstable_by(f64::total_cmp);
        // Of a normal distribution: the median's absolute deviation, and the median's own error.
        let deviation = 1.4826 * middle(&apart);
        let measured = Measured {
            share,
            error: 2.0 * 1.2533 * deviation / (ratios.len() as f64).sqrt(),
            pairs: ratios.len(),
        };
        // On a busy host turns may differ by more than what is measured.
        (measured.error <= CERTAIN.max(share.abs() / 2.0)).then_some(measured)
    }

    /// What a mode costs: what it takes beside a bare turn, and what counting takes in that.
    pub(super) fn of(&self, mode: Mode) -> Option<Measured> {
        let counting = self.beside_bare(Mode::Twice)?;
        let beside = match mode {
            Mode::Bare => {
                return Some(counting);
            }
            mode => self.beside_bare(mode)?,
        };
        Some(Measured {
            share: beside.share + counting.share,
            error: beside.error.hypot(counting.error),
            pairs: beside.pairs.min(counting.pairs),
        })
    }

    /// Of the CPU time until now, in nanoseconds: what recording has taken of it. `window_ns` is what is reckoned for windows,
    /// where less or nothing was measured in them.
    pub(super) fn spent_ns(&self, window_ns: f64) -> f64 {
        let part = |mode: Mode| {
            let share = self.of(mode).map_or(0.0, |of| of.share.max(0.0));
            self.cpu_ns[mode as usize] as f64 * share / (1.0 + share)
        };
        // Few windows are measured at first.
        let windows = part(Mode::Window).max(window_ns);
        let others = [Mode::Bare, Mode::Twice, Mode::Sums, Mode::Closing];
        windows + others.map(part).iter().sum::<f64>()
    }

    /// What it costs to close a window, in nanoseconds, with this share of the CPU time that was used until now spent on closing so
    /// many.
    pub(super) fn closing_ns(&self, windows: u64) -> f64 {
        let share = self.of(Mode::Closing).map_or(0.0, |of| of.share.max(0.0));
        let each = self.cpu_ns[Mode::Closing as usize] as f64 / windows.max(1) as f64;
        each * share / (1.0 + share)
    }

    /// CPU time of the programs in turns.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.iter().sum()
    }

    /// What recording has cost all in all, as a share of what the programs would have used without; `None` if that was not
    /// measured.
    pub(super) fn overall(&self, window_ns: f64) -> Option<Measured> {
        let sums = self.of(Mode::Sums)?;
        let spent = self.spent_ns(window_ns);
        let rest = self.cpu_ns() as f64 - spent;
        let window = self.of(Mode::Window);
        let in_windows = self.cpu_ns[Mode::Window as usize] as f64 / self.cpu_ns().max(1) as f64;
        let error = sums.error * (1.0 - in_windows)
            + window.map_or(0.0, |window| window.error * in_windows);
        (rest > 0.0).then(|| Measured {
            share: spent / rest,
            error,
            pairs: sums.pairs,
        })
    }
}

/// The median of numbers in rising order.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[half - 1] + sorted[half]) / 2.0,
        _ => sorted[half],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that flushes each 4 us, and takes so much more in each mode; each turn it drifts, and another process
    /// comes and goes.
    fn played(more: [f64; Mode::ALL], noise: f64) -> Cost {
        let mut cost = Cost::default();
        let (mut done, mut state) = (Done::default(), 1u64);
        let order = [
            Mode::Sums,
            Mode::Bare,
            Mode::Window,
            Mode::Bare,
            Mode::Twice,
        ];
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
                now.insert(8, Done::default());
            }
            cost.turn(mode, u64::from(turn) * 25_000_000, now);
        }
        cost
    }

    #[test]
    fn what_a_mode_costs_is_found_though_the_program_changes() {
        let cost = played([0.0, 0.03, 0.05, 0.40, 0.0], 0.5);
        for (mode, expected) in [(Mode::Bare, 0.03), (Mode::Sums, 0.08), (Mode::Window, 0.43)] {
            let of = cost.of(mode).unwrap();
            assert!((of.share - expected).abs() < 0.01, "{mode:?}: {of:?}");
        }
        let overall = cost.overall(0.0).unwrap();
        assert!((0.08..0.25).contains(&overall.share), "{overall:?}");
    }

    #[test]
    fn without_events_nothing_is_said() {
        let mut cost = Cost::default();
        for turn in 0..50u64 {
            let mut now = Reading::default();
            let cpu_ns = turn * 1_000_000;
            now.insert(
                7,
                Done {
                    cpu_ns,
                    ..Done::default()
                },
            );
            let mode = [Mode::Sums, Mode::Bare, Mode::Twice][turn as usize % 3];
            cost.turn(mode, turn * 25_000_000, now);
        }
        assert_eq!(cost.overall(0.0), None);
        assert_eq!(cost.spent_ns(5.0), 5.0);
    }
}
