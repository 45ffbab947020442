//! Makes CPUs alternate, so that one acts between two actions of another. Also makes them repeat their actions, so that
//! there are more such moments.

use crate::generated::program::CpuProgram;
use crate::schedule::Rng;

/// Makes the first or second CPU wait somewhere until the other has performed a part of its work, and makes the other
/// wait, too. `tells` and `waits` contain two flags in ascending order that the program doesn't use otherwise.
pub(super) fn take_turns<O: Copy>(
    rng: &mut Rng,
    cpu: &mut [CpuProgram<O>],
    tells: [O; 2],
    waits: [O; 2],
) {
    let first = rng.below(2) as usize;
    let mut place =
        |from: usize, run: &[O]| from + rng.below((run.len() - from) as u64 + 1) as usize;
    let run = &mut cpu[first].run;
    let at = place(0, run);
    run.splice(at..at, [tells[0], waits[1]]);
    let run = &mut cpu[1 - first].run;
    let from = place(0, run);
    let to = place(from, run);
    run.insert(to, tells[1]);
    run.insert(from, waits[0]);
}

/// The number of operations up to which a run is repeated.
const SHORT: usize = 6;

/// Makes most CPUs repeat their work several times.
pub(super) fn repeat<O: Copy>(rng: &mut Rng, cpu: &mut [CpuProgram<O>]) {
    for lane in cpu {
        let times = rng.below(4) as usize;
        if lane.run.len() <= SHORT && times > 0 {
            lane.run = lane.run.repeat(times);
        }
    }
}
