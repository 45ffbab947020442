//! Whether programs wait for each other for ever.
//!
//! The engine's waits are watched by [`life`](crate::life). Programs wait, too: at barriers, and for the measured window to
//! close. No clock tells a program that waits for ever from one whose partner gets no time, so each CPU counts what it does
//! and how often it has waited. No CPU gets on once every CPU has waited [`PATIENCE`] times, and none has done
//! anything, since one of them looked first: whatever they wait for, they all have looked at it many times.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How often every CPU has waited when the run counts as stuck.
pub const PATIENCE: u64 = 1 << 10;
/// Waits between two looks at what the others do.
const WAITS_A_LOOK: u64 = 64;

/// What a CPU shows the others of its program.
#[derive(Default)]
#[repr(align(128))]
struct Steps {
    /// How much it has done.
    done: AtomicU64,
    /// How often it has waited.
    waited: AtomicU64,
    /// Whether its program has ended.
    ended: AtomicBool,
}

/// What a waiting CPU remembers of all CPUs: done and waited.
#[derive(Default)]
pub struct Seen(Vec<[u64; 2]>);

/// What all CPUs show.
pub struct Watch {
    cpus: Box<[Steps]>,
}

/// Only the CPU itself counts, so that no locked operation orders what is under test.
fn count(word: &AtomicU64) -> u64 {
    let count = word.load(Ordering::Relaxed) + 1;
    word.store(count, Ordering::Relaxed);
    count
}

impl Watch {
    /// For so many CPUs.
    pub fn new(cpus: usize) -> Self {
        Watch {
            cpus: (0..cpus).map(|_| Steps::default()).collect(),
        }
    }

    /// The CPU does something, on which others may wait.
    pub fn does(&self, cpu: usize) {
        count(&self.cpus[cpu].done);
    }

    /// The CPU's program has ended.
    pub fn ends(&self, cpu: usize) {
        self.does(cpu);
        self.cpus[cpu].ended.store(true, Ordering::Relaxed);
    }

    /// The CPU waits: whether all have waited for too long.
    pub fn waits(&self, cpu: usize, seen: &mut Seen) -> bool {
        if !count(&self.cpus[cpu].waited).is_multiple_of(WAITS_A_LOOK) {
            return false;
        }
        let now = || {
            self.cpus
                .iter()
                .map(|steps| [&steps.done, &steps.waited].map(|word| word.load(Ordering::Relaxed)))
        };
        let same = seen
            .0
            .iter()
            .zip(now())
            .all(|(then, now)| then[0] == now[0]);
        if seen.0.is_empty() || !same {
            seen.0 = now().collect();
            return false;
        }
        let waited = seen.0.iter().zip(now()).zip(&self.cpus);
        waited.into_iter().all(|((then, now), steps)| {
            steps.ended.load(Ordering::Relaxed) || now[1] - then[1] >= PATIENCE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits on both CPUs as often as would be too much, `between` after each round.
    fn stuck(watch: &Watch, mut between: impl FnMut()) -> bool {
        let mut seen = [Seen::default(), Seen::default()];
        (0..2 * PATIENCE).any(|_| {
            between();
            (0..2).any(|cpu| watch.waits(cpu, &mut seen[cpu]))
        })
    }

    #[test]
    fn only_those_who_all_wait_are_stuck() {
        let watch = Watch::new(2);
        assert!(!stuck(&watch, || watch.does(1)));
        assert!(stuck(&watch, || ()));
        let mut seen = Seen::default();
        let watch = Watch::new(2);
        // The other one gets no time.
        assert!(!(0..4 * PATIENCE).any(|_| watch.waits(0, &mut seen)));
        watch.ends(1);
        assert!((0..4 * PATIENCE).any(|_| watch.waits(0, &mut seen)));
    }
}
