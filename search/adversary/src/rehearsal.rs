//! Runs a workload for the first time, to find out whether it is short enough to be searched.

use crate::kind::MachineKind;
use crate::scenario::Scenario;
use crate::schedule::Strategy;
use crate::session::{Case, Session};
use crate::workload::WorkloadRun;
use quell::Policy;

/// The maximum number of decisions of a run. A search has many runs, so they must be short.
const MOST_DECISIONS: u32 = 200_000;

/// Creates a scenario of a workload for all machines.
///
/// To do so, it runs the workload on one machine with every mechanism on. If that run violates the contract, it isn't
/// reported here: a search finds the violation again, with its schedule.
///
/// # Errors
/// Returns an operation that the adversary doesn't support, with the line of its file, or that the run is too long to
/// search.
pub fn rehearse<'p>(performance: &'p WorkloadRun, name: &'p str) -> Result<Scenario<'p>, String> {
    let long = Scenario::workload(name, performance, MOST_DECISIONS);
    let case =
        Case { scenario: &long, kind: MachineKind::ALL[0], policy: Policy::ALL, mistake: None };
    // The schedule is random, so that a CPU that polls a word can't keep the others from writing it.
    let (run, _) = Session::new(case).run(Strategy::random(1));
    if let Some(failure) = performance.take_failure() {
        return Err(failure.to_string());
    }
    if run.decisions >= MOST_DECISIONS {
        return Err(format!(
            "one run takes more than {MOST_DECISIONS} decisions of the search: use smaller parameters"
        ));
    }
    // Other schedules may need more steps because of contention.
    let steps = run.decisions.saturating_mul(4).max(8_000);
    Ok(Scenario::workload(name, performance, steps))
}
