//! Draws the sizes of the machine under a program over the engine. Each size is often small, or at its limit.

use crate::generated::program::{SPACES, Shape};
use crate::schedule::Rng;

/// Draws the sizes of a machine.
pub(super) fn shape(rng: &mut Rng) -> Shape {
    let spaces = rng.weigh(&[(7, 1), (11, 2), (6, 3), (4, 4), (2, 6), (1, SPACES as u8)]);
    let mask = |rng: &mut Rng| 1 | rng.below(1 << spaces) as u16;
    Shape {
        first_cpu: rng.weigh(&[(30, 0), (1, 62), (1, 63), (1, 126)]),
        spaces,
        files: [mask(rng), mask(rng), mask(rng)],
        ledger: rng.weigh(&[(1, 0), (3, 1), (6, 2), (3, 3), (1, 8)]),
        tags: rng.weigh(&[(3, 1), (6, 2), (2, 3), (1, 8)]),
        spare_bits: rng.weigh(&[(5, 0), (2, 1)]),
        full_above: rng.weigh(&[(1, 0), (2, 1), (6, 3), (2, 33)]),
        nmis: rng.weigh(&[(5, 0), (1, 1), (1, 2)]),
        nmi_page: 0,
        spurious: rng.weigh(&[(8, 0), (1, 1), (1, 2)]),
        preemptions: rng.weigh(&[(5, 0), (2, 1)]),
        leaves_space: rng.one_in(2),
        open_batches: rng.weigh(&[(16, 0), (1, 1), (1, 2), (1, 3)]),
        unscheduled: rng.weigh(&[(28, 0), (1, 0b1), (1, 0b10), (1, 0b110), (1, 0b1111)]),
    }
}
