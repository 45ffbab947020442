//! The engine in a few schedules of every scenario: what `cargo mutants` asks of each change, besides the engine's own tests
//! (`docs/mutations.md`). It takes seconds, so it finds what is wrong in most schedules, not in one of thousands.

use quell::Policy;
use quell_adversary::explore::{Budget, Exploration, explore};
use quell_adversary::{Case, MachineKind, Scenario, Session};

/// Schedules of each scenario on each machine.
const SCHEDULES: u64 = 24;

#[test]
fn the_engine_holds_in_a_few_schedules_of_every_scenario() {
    let mut schedules = 0;
    for scenario in Scenario::ALL.iter().filter(|scenario| !scenario.uses_vm()) {
        for kind in MachineKind::ALL
            .iter()
            .filter(|kind| scenario.runs_on(kind))
        {
            let case = Case {
                scenario,
                kind: *kind,
                policy: Policy::ALL,
                mistake: None,
            };
            let exploration = Exploration {
                case,
                budget: Budget::Schedules(SCHEDULES),
                seed: 5,
                depth: 4,
            };
            let report = explore(&mut Session::new(case), &exploration, |_, _| true);
            schedules += report.schedules;
            if let Some(failure) = &report.failure {
                panic!("{} on {}: {}", scenario.name, kind.name, failure.violation);
            }
        }
    }
    assert!(schedules > SCHEDULES * 100, "{schedules} schedules");
}
