//! One program in many schedules.

use crate::action::Deviation;
use crate::machine::End;
use crate::schedule::Strategy;
use crate::session::Session;
use quell_contract::Violation;

/// The greatest depth of priority-based search.
const DEPTH: u64 = 4;

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Programs drawn.
    pub programs: u64,
    /// Schedules run.
    pub schedules: u64,
    /// Moments that they had.
    pub moments: u64,
}

/// Runs so many schedules of all kinds, or as many as take `most` moments, until one breaks the contract; how,
/// and what it breaks.
pub(super) fn search(
    session: &mut Session<'_>,
    seed: u64,
    count: u64,
    most: u64,
    spent: &mut Spent,
) -> Option<(Vec<Deviation>, Violation)> {
    let mut longest = 64;
    let enough = spent.moments + most;
    let (cpus, steps) = (session.case().scenario.cpus, session.case().scenario.steps);
    for number in 0..count {
        if spent.moments > enough {
            break;
        }
        let seed = seed.wrapping_add(number);
        let strategy = match number % 4 {
            0 | 2 => Strategy::random(seed),
            1 => Strategy::pct(seed, 1 + (number / 4 % DEPTH) as u32, longest),
            _ => Strategy::stalling(seed, cpus, longest),
        };
        let run = session.run(strategy).0;
        longest = longest.max(run.decisions.min(steps));
        spent.schedules += 1;
        spent.moments += u64::from(run.moments);
        if let End::Violated(violation) = run.end {
            return Some((session.trail(), *violation));
        }
    }
    None
}
