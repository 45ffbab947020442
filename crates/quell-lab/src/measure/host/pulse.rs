//! Whether the measuring CPU's core was its own, felt by a loop.
//!
//! Two hardware threads share a core's front end and execution units. In a virtual machine the other one may be another
//! guest's: no counter that this guest can read says whether it is busy, the hypervisor steals no time, and yet everything
//! takes 1.3 to 1.6 times as long, for a millisecond or for minutes. Different work suffers differently, so that two
//! rows measured one after the other cannot be compared by a factor.
//!
//! A loop of independent additions that fills every slot of the core takes twice as long when it has half of them. It
//! runs for a few microseconds right before and right after each sample; a sample is *quiet* if both took little more
//! than the fastest of the whole run.
//!
//! # What this does not show
//!
//! What happened only in the middle of a sample (samples are short for that reason), contention for the shared cache
//! and for memory, and the core of the *target* of a shootdown. On a machine whose core is shared all the time, the
//! fastest loop is a slow one, and nothing is noticed.

use std::hint::black_box;
use std::time::Instant;

/// Turns of the loop: some microseconds, so that the clock's resolution does not matter.
const TURNS: u64 = 8_000;

/// Nanoseconds that the loop takes now.
pub fn take() -> f64 {
    let begin = Instant::now();
    // Different operations, so that the compiler cannot make one vector of them and leave most of the slots empty.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_is_not_optimised_away() {
        let fastest = (0..100).map(|_| take()).fold(f64::MAX, f64::min);
        // Six operations a turn and the loop's own two, and no processor does more than a dozen in a cycle of 6 GHz.
        assert!(fastest > TURNS as f64 * 6.0 / 12.0 / 6.0, "{fastest} ns");
    }
}
