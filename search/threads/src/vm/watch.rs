//! Detects programs that make no progress.
//!
//! [`life`](crate::life) watches the engine's waits, and a workload itself detects that no CPU can reach a barrier.
//! This module detects endless loops. Nothing here takes time, so no clock distinguishes a program that computes for
//! ever from a program whose partner gets no time. Instead, each CPU counts its work and its idle turns.
//!
//! * No CPU makes progress if each CPU that hasn't ended has idled for [`PATIENCE`] turns, and none has done anything
//!   visible to others since one of them first checked.
//! * One CPU makes no progress if it has done [`MOST`] units of work, or up to twice that, without a report of the
//!   program's progress. This is a limit, not a proof: programs that work longer must report.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of idle turns of every CPU after which the run counts as stuck.
///
/// It is also the number of statements that a program may perform without advancing time.
pub const PATIENCE: u64 = 10_000_000;
/// The number of turns that one check of another CPU's word counts as. A nap follows it.
pub const WAIT: u64 = PATIENCE / 1024;
/// The number of turns between two checks of the others' work.
const LOOK: u64 = 64 * WAIT;
/// The accesses without a progress report that make a CPU stuck: some minutes of work.
pub const MOST: u64 = 1 << 32;
/// The number of accesses that one call counts as.
pub const CALL: u64 = 64;

/// A CPU's progress, visible to the others.
#[derive(Default)]
#[repr(align(128))]
struct ProgramProgress {
    /// The amount of its work.
    done: AtomicU64,
    idled: AtomicU64,
    /// The line of the workload file that it performs.
    line: AtomicU32,
    ended: AtomicBool,
}

/// All CPUs' work and idle turns, as an idle CPU last saw them.
#[derive(Default)]
pub struct IdleSnapshot(Vec<[u64; 2]>);

pub struct Watch {
    cpus: Box<[ProgramProgress]>,
    told: AtomicU64,
}

/// A CPU's work since the last progress report.
#[derive(Default)]
pub struct UnreportedWork {
    done: u64,
    told: u64,
}

/// Only the CPU itself counts, so that no locked operation adds an ordering to the tested code.
fn count(word: &AtomicU64, more: u64) -> u64 {
    let count = word.load(Ordering::Relaxed) + more;
    word.store(count, Ordering::Relaxed);
    count
}

impl Watch {
    pub fn new(cpus: usize) -> Self {
        Watch {
            cpus: (0..cpus).map(|_| ProgramProgress::default()).collect(),
            told: AtomicU64::new(0),
        }
    }

    /// Counts visible work. Returns whether there was too much since the last progress report.
    #[inline]
    pub fn does(&self, cpu: usize, much: u64, since: &mut UnreportedWork) -> bool {
        count(&self.cpus[cpu].done, 1);
        since.done += much;
        if since.done < MOST {
            return false;
        }
        let told = self.told.load(Ordering::Relaxed);
        let endless = told == since.told;
        *since = UnreportedWork { done: 0, told };
        endless
    }

    /// Counts a report of progress.
    pub fn tells(&self) {
        count(&self.told, 1);
    }

    /// Records the line of its file that the CPU performs.
    pub fn at(&self, cpu: usize, line: u32) {
        self.cpus[cpu].line.store(line, Ordering::Relaxed);
    }

    pub fn ends(&self, cpu: usize) {
        count(&self.cpus[cpu].done, 1);
        self.cpus[cpu].ended.store(true, Ordering::Relaxed);
    }

    /// Counts idle turns. Returns whether all CPUs have idled for too long.
    pub fn idles(&self, cpu: usize, turns: u64, seen: &mut IdleSnapshot) -> bool {
        if count(&self.cpus[cpu].idled, turns) % LOOK >= turns {
            return false;
        }
        let now = || {
            self.cpus
                .iter()
                .map(|steps| [&steps.done, &steps.idled].map(|word| word.load(Ordering::Relaxed)))
        };
        let same = seen.0.iter().zip(now()).all(|(then, now)| then[0] == now[0]);
        if seen.0.is_empty() || !same {
            seen.0 = now().collect();
            return false;
        }
        let idled = seen.0.iter().zip(now()).zip(&self.cpus);
        idled.into_iter().all(|((then, now), steps)| {
            steps.ended.load(Ordering::Relaxed) || now[1] - then[1] >= PATIENCE
        })
    }
}

/// Prints the position of each of the first CPUs, and the number of others.
impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (cpu, steps) in self.cpus.iter().enumerate().take(8) {
            let separator = if cpu == 0 { "" } else { ", " };
            match steps.ended.load(Ordering::Relaxed) {
                true => write!(f, "{separator}CPU {cpu} has ended")?,
                false => {
                    let line = steps.line.load(Ordering::Relaxed);
                    write!(f, "{separator}CPU {cpu} is at line {line}")?;
                }
            }
        }
        match self.cpus.len().saturating_sub(8) {
            0 => Ok(()),
            more => write!(f, ", and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets both CPUs idle up to twice the limit, and calls `between` after each round. Returns whether they count as
    /// stuck.
    fn stuck(watch: &Watch, mut between: impl FnMut()) -> bool {
        let mut seen = [IdleSnapshot::default(), IdleSnapshot::default()];
        (0..2 * PATIENCE / WAIT).any(|_| {
            between();
            (0..2).any(|cpu| watch.idles(cpu, WAIT, &mut seen[cpu]))
        })
    }

    #[test]
    fn only_those_who_all_pass_time_are_stuck() {
        let watch = Watch::new(2);
        let mut since = UnreportedWork::default();
        assert!(!stuck(&watch, || assert!(!watch.does(1, 1, &mut since))));
        assert!(stuck(&watch, || ()));
        let mut seen = IdleSnapshot::default();
        let watch = Watch::new(2);
        // The other CPU gets no time.
        assert!(!(0..4 * PATIENCE / WAIT).any(|_| watch.idles(0, WAIT, &mut seen)));
        watch.ends(1);
        assert!((0..4 * PATIENCE / WAIT).any(|_| watch.idles(0, WAIT, &mut seen)));
    }

    #[test]
    fn computing_and_waiting_are_told_from_getting_on() {
        let watch = Watch::new(2);
        let mut seen = [IdleSnapshot::default(), IdleSnapshot::default()];
        let rounds = (0..3 * PATIENCE).find(|round| {
            watch.idles(0, 1, &mut seen[0])
                || (round % WAIT == 0 && watch.idles(1, WAIT, &mut seen[1]))
        });
        assert!(rounds.is_some_and(|rounds| rounds >= PATIENCE), "{rounds:?}");
    }

    #[test]
    fn one_who_does_much_is_not_endless_while_the_program_says_how_far_it_is() {
        let watch = Watch::new(1);
        let mut since = UnreportedWork::default();
        let mut endless = || (0..4).any(|_| watch.does(0, MOST / 2, &mut since));
        watch.tells();
        assert!(endless(), "no progress report after the first half");
        let mut endless = || {
            (0..4).any(|_| {
                watch.tells();
                watch.does(0, MOST / 2, &mut since)
            })
        };
        assert!(!endless());
    }
}
