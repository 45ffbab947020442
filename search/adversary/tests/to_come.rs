//! Future machines: the contract holds on them, and mistakes show there.

use crate::holds;
use quell::Policy;
use quell_adversary::explore::POLICIES;
use quell_adversary::scenario::Scenario;
use quell_adversary::{Budget, Case, MachineKind};

fn cases(kind: MachineKind, policy: Policy) -> impl Iterator<Item = Case<'static>> {
    let scenarios = Scenario::ALL.iter();
    let scenarios = scenarios.filter(move |scenario| scenario.runs_on(&kind));
    scenarios.map(move |scenario| Case { scenario, kind, policy, mistake: None })
}

#[test]
fn the_contract_holds() {
    for kind in MachineKind::TO_COME {
        let mut searched = 0;
        // We search with receipts and without. Break before make is judged only without them.
        let flushed = |policy| Policy { asynchronous: false, ..policy };
        let many = [Policy::ALL, flushed(Policy::ALL)].map(|policy| (policy, 500));
        let few = POLICIES.map(|policy| [policy, flushed(policy)].map(|policy| (policy, 20)));
        for (policy, schedules) in many.into_iter().chain(few.into_iter().flatten()) {
            for case in cases(*kind, policy) {
                searched += 1;
                holds(case, Budget::Schedules(schedules));
            }
        }
        assert!(searched > 1000, "{searched}");
    }
}

/// Tests that need mistakes of the source. They run only in the copy that contains these: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;
    use crate::search;
    use quell_adversary::Mistake;
    use quell_vm::contract::Clause;

    #[test]
    fn a_mistake_shows() {
        for kind in MachineKind::TO_COME {
            for (scenario, mistake, clause) in [
                ("unmap-access", "SkipWait", Clause::C1),
                ("table-free", "EarlyAckForTables", Clause::C6),
            ] {
                let scenario = Scenario::named(scenario).expect("a scenario");
                let mistake = Some(Mistake::named(mistake).expect("a mistake"));
                let case = Case { mistake, ..Case::on(scenario, kind.name) };
                let failure = search(case, Budget::Schedules(2000)).failure;
                let broken = failure.map(|failure| failure.violation.clause);
                assert_eq!(broken, Some(clause), "{mistake:?} on {}", kind.name);
            }
        }
    }
}
