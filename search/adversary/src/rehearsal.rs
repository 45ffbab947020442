//! A workload's first run, which shows whether it is short enough to be searched.

use crate::kind::MachineKind;
use crate::scenario::Scenario;
use crate::schedule::Strategy;
use crate::session::{Case, Session};
use crate::workload::Performance;
use quell::Policy;

/// The most decisions that a run may take: a search is of many runs.
const MOST_DECISIONS: u32 = 200_000;

/// A workload as a scenario on all machines, after a run of it on one of them with every mechanism on.
///
/// A breach of the contract in that run is not told: a search finds it again, with its schedule.
///
/// # Errors
/// What the workload cannot do under the adversary, with the line of its file; or that a run is too long to search.
pub fn rehearse<'p>(performance: &'p Performance, name: &'p str) -> Result<Scenario<'p>, String> {
    let long = Scenario::workload(name, performance, MOST_DECISIONS);
    let case = Case {
        scenario: &long,
        kind: MachineKind::ALL[0],
        policy: Policy::ALL,
        mistake: None,
    };
    // At random, so that no CPU which asks again and again keeps the others from what it asks for.
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
