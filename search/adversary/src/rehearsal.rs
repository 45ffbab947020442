//! A workload's first run, which shows whether it is short enough to be searched.

use crate::kind::MachineKind;
use crate::scenario::Scenario;
use crate::schedule::Strategy;
use crate::session::{Case, Session};
use crate::workload::Performance;
use quell::Policy;

/// The most decisions that a run may take: a search is of many runs.
const MOST_DECISIONS: u32 = 200_000;

/// Makes a scenario of a workload for all machines, after a run of it on one of them with every mechanism on.
///
/// A violation in that run is not reported: a search finds it again, with its schedule.
///
/// # Errors
/// An operation that the adversary does not support, with the line of its file; or a run too long to search.
pub fn rehearse<'p>(performance: &'p Performance, name: &'p str) -> Result<Scenario<'p>, String> {
    let long = Scenario::workload(name, performance, MOST_DECISIONS);
    let case = Case {
        scenario: &long,
        kind: MachineKind::ALL[0],
        policy: Policy::ALL,
        mistake: None,
    };
    // Random, so that a CPU that polls cannot keep the others from writing the word.
    let (run, _) = Session::new(case).run(Strategy::random(1));
    if let Some(failure) = performance.take_failure() {
        return Err(failure.to_string());
    }
    if run.decisions >= MOST_DECISIONS {
        return Err(format!(
            "one run takes more than {MOST_DECISIONS} decisions of the search: let it do less"
        ));
    }
    // Others may take more, where CPUs come in each other's way.
    let steps = run.decisions.saturating_mul(4).max(8_000);
    Ok(Scenario::workload(name, performance, steps))
}
