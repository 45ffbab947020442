//! Skips the turns of waiting loops.
//!
//! Simulating every turn of a loop of loads and [`relax`](quell::Hardware::relax) at a contended lock would dominate
//! the host's time. Suppose that a turn made only the same loads as the turn before, all from lines that the CPU held.
//! Then further turns repeat it until one of the lines is written or an interrupt arrives. So the CPU sleeps, and wakes
//! at the beginning of the turn that would notice. If its condition is still false then, it sleeps again after one
//! turn.
//!
//! The result equals full simulation if the loop's condition depends on shared words alone. Other loops, for example
//! loops that count their turns, check their condition only every [`MOST_TURNS`] turns. Reading the clock makes a turn
//! different.

use crate::file::Time;

/// Loads of one turn that are recorded.
const LOADS: usize = 8;

/// Turns after which the loop is simulated in full again.
pub const MOST_TURNS: u64 = 1024;

/// The loads of a turn: lines, and the time of each since the beginning of the turn.
type Loads = [(u32, Time); LOADS];

/// The state of a CPU's waiting loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitLoop {
    /// The beginning of the turn: the end of the last `relax`.
    since: Time,
    loads: Loads,
    count: usize,
    /// The time that those loads took.
    loading: Time,
    /// Whether one of the loads was from a line that the CPU did not hold.
    fetched: bool,
    /// Whether the turn included an operation that a waiting loop doesn't make.
    other: bool,
    /// The loads of an earlier turn that did nothing else and fetched nothing, and its length; 0 if there was none.
    usual: Loads,
    usual_count: usize,
    period: Time,
}

impl WaitLoop {
    /// Records that the CPU loaded a line, which it held or had to fetch.
    #[inline]
    pub fn load(&mut self, line: u32, at: Time, took: Time, held: bool) {
        let again = |load: &(u32, Time)| load.0 == line;
        if !held && self.loads[..self.count].iter().any(again) {
            // The line was written since this turn loaded it first, so the next turn may notice.
            self.other = true;
        }
        if self.count < LOADS {
            self.loads[self.count] = (line, at.wrapping_sub(self.since));
            self.count += 1;
            self.loading += took;
            self.fetched |= !held;
        } else {
            self.other = true;
        }
    }

    /// Records an operation that a waiting loop doesn't make.
    #[inline]
    pub fn interfere(&mut self) {
        self.other = true;
    }

    /// Ends a turn at `now`, after a pause. Returns whether the CPU may sleep.
    pub fn turn(&mut self, now: Time, pause: Time) -> bool {
        let length = now - self.since;
        let clean = !self.other && self.count > 0 && length == self.loading + pause;
        let pairs = self.loads.iter().zip(&self.usual).take(self.count);
        let usual = clean
            && self.period > 0
            && self.count == self.usual_count
            && pairs.fold(true, |same, (now, then)| same && now.0 == then.0);
        let sleeps = usual && (self.fetched || length == self.period);
        if clean && !self.fetched {
            self.usual = self.loads;
            self.usual_count = self.count;
            self.period = length;
        }
        self.since = now;
        self.count = 0;
        self.loading = 0;
        self.fetched = false;
        self.other = false;
        sleeps
    }

    /// Returns the lines that the sleeping CPU would load, each once.
    pub fn lines(&self) -> impl Iterator<Item = u32> + '_ {
        let loads = &self.usual[..self.usual_count];
        let first = |at: usize| loads[..at].iter().all(|load| load.0 != loads[at].0);
        (0..loads.len()).filter(move |&at| first(at)).map(|at| loads[at].0)
    }

    /// Returns the time at which a sleeping CPU checks again if nothing happens.
    pub fn latest(&self) -> Time {
        self.since + MOST_TURNS * self.period
    }

    /// Returns the beginning of the turn that notices an event at `at`: the current one.
    pub fn turn_at(&self, at: Time) -> Time {
        self.since + at.saturating_sub(self.since) / self.period * self.period
    }

    /// Returns the beginning of the turn that first loads a line at or after `at`.
    pub fn turn_that_sees(&self, line: u32, at: Time) -> Time {
        let offset = self.usual[..self.usual_count]
            .iter()
            .find(|load| load.0 == line)
            .map_or(0, |load| load.1);
        let turns = at.saturating_sub(self.since + offset).div_ceil(self.period);
        self.since + turns * self.period
    }

    /// Wakes the CPU at the beginning of a turn. Returns the number of turns it slept over, and of their loads.
    pub fn wake(&mut self, now: Time) -> (u64, u64) {
        let turns = (now - self.since) / self.period;
        self.since = now;
        (turns, turns * self.usual_count as u64)
    }
}
