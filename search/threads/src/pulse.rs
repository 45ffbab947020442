//! Detects whether the measuring thread had its core alone, by timing a loop.
//!
//! Two hardware threads share a core's front end and execution units. In a virtual machine, the other thread may belong
//! to another guest. Then no counter of this guest shows that it is busy, and no steal time is accounted. But
//! everything takes 1.3 to 1.6 times as long, for a millisecond or for minutes. The slowdown depends on the work, so no
//! factor can correct it.
//!
//! The *pulse* is a loop of independent operations that fills every slot of the core. It takes twice as long if it gets
//! half of the slots. It's [timed](take) for a few microseconds right before and after each sample. A sample is *quiet*
//! if both times are little longer than the fastest of the whole run.
//!
//! # Not detected
//!
//! Some disturbances aren't detected: those in the middle of a sample (keep samples short), contention for the shared
//! cache and memory, and load on other cores. If the core is shared all the time, even the fastest pulse is slow.

use std::hint::black_box;
use std::time::Instant;

/// The number of iterations of the loop. It takes some microseconds, so that the clock's resolution doesn't matter.
const TURNS: u64 = 8_000;
/// The factor by which the loop may exceed its fastest time on a core that the thread has alone.
const OWN_CORE: f64 = 1.15;
/// The number of values below which a median means nothing.
const FEW: usize = 5;

/// Times the pulse once. Returns nanoseconds.
pub fn take() -> f64 {
    let begin = Instant::now();
    // The operations differ, so that the compiler can't combine them into vectors and leave most slots empty.
    let mut lanes: [u64; 6] = black_box([1; 6]);
    for turn in 0..black_box(TURNS) {
        lanes[0] = lanes[0].wrapping_add(turn);
        lanes[1] ^= turn;
        lanes[2] = lanes[2].wrapping_sub(turn);
        lanes[3] |= turn;
        lanes[4] = lanes[4].rotate_left(5);
        lanes[5] = lanes[5].wrapping_add(3);
    }
    black_box(lanes);
    begin.elapsed().as_nanos() as f64
}

/// Returns the longest pulse that still indicates that the thread had its core alone.
///
/// `pulses` are those of a whole run. Returns `None` if there are none.
pub fn longest_own(pulses: impl IntoIterator<Item = f64>) -> Option<f64> {
    let fastest = pulses.into_iter().min_by(f64::total_cmp)?;
    Some(fastest * OWN_CORE)
}

/// The values of a measurement that were taken in quiet moments.
#[derive(Debug, Clone, PartialEq)]
pub struct QuietValues<T> {
    /// The values: at least five, and at least a tenth of all.
    pub values: Vec<T>,
    /// Whether the thread had its core alone for all of these values.
    ///
    /// If not, there were too few such values, and these are the values with the fastest pulses.
    pub own_core: bool,
}

/// Returns the values whose pulses don't exceed `longest_own`.
///
/// Each value comes with the slower of the pulses around it. Returns `None` if there are fewer than five values in all.
pub fn quiet<T>(
    values: impl IntoIterator<Item = (f64, T)>,
    longest_own: f64,
) -> Option<QuietValues<T>> {
    let mut found: Vec<_> = values.into_iter().collect();
    if found.len() < FEW {
        return None;
    }
    found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let own = found.partition_point(|&(pulse, _)| pulse <= longest_own);
    let wanted = FEW.max(found.len() / 10);
    found.truncate(own.max(wanted));
    Some(QuietValues {
        values: found.into_iter().map(|(_, value)| value).collect(),
        own_core: own >= wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_is_not_optimised_away() {
        let fastest = (0..100).map(|_| take()).fold(f64::MAX, f64::min);
        // Each iteration has six operations, and no processor does more than a dozen per cycle at 6 GHz.
        assert!(fastest > TURNS as f64 * 6.0 / 12.0 / 6.0, "{fastest} ns");
    }

    #[test]
    fn what_a_shared_core_took_is_left_out() {
        assert_eq!(longest_own([]), None);
        assert_eq!(longest_own([3.0, 1.0, 2.0]), Some(OWN_CORE));
        let mut values = vec![(2.0, 30); 60];
        values.extend([(1.1, 20); 7]);
        let found = quiet(values.clone(), OWN_CORE).unwrap();
        assert_eq!(found.values, [20; 7]);
        assert!(found.own_core);
    }

    #[test]
    fn where_nothing_is_quiet_the_tenth_with_most_of_the_core_is_taken_and_told() {
        let values = (0..100).map(|i| (f64::from(100 - i), i));
        let found = quiet(values.clone(), 0.5).unwrap();
        assert_eq!(found.values, (90..100).rev().collect::<Vec<_>>());
        assert!(!found.own_core);
        let found = quiet(values.clone().take(7), 0.5).unwrap();
        assert_eq!((found.values.len(), found.own_core), (5, false));
        assert_eq!(quiet(values.take(4), 200.0), None);
    }
}
