//! Machines whose loads overtake each other. Orderings that are too weak break the contract there, but not on the same
//! machine if it satisfies loads at their step.

use quell_adversary::coverage::{MachineEvent, ReachGoal};
use quell_adversary::generate::RecordedProgram;
use quell_adversary::generate::random::{self, LargePages};
use quell_adversary::scenario::Scenario;
use quell_adversary::schedule::Rng;
use quell_adversary::{Budget, Case, MachineKind, Mistake, Report};
use quell_vm::contract::Clause;

/// A machine that reorders, and the same machine without reordering.
type Machines = [&'static str; 2];

const ARM: Machines = ["arm-reordering", "arm-asid8"];
const RISCV: Machines = ["riscv-reordering", "riscv"];

/// Searches a case, with this many schedules whatever the scenario's share.
fn search(case: Case, schedules: u64) -> Report {
    crate::search(case, Budget::Schedules(schedules * case.scenario.one_in))
}

/// Checks that a weakened ordering breaks a clause in a scenario, but only on the first machine.
fn shows(mistake: &str, scenario: &str, machines: Machines, clause: Clause) {
    const SCHEDULES: u64 = 2_000;
    let broken = |machine: &str, mistake: Option<Mistake>| {
        let scenario = Scenario::named(scenario).expect("a scenario");
        search(Case { mistake, ..Case::on(scenario, machine) }, SCHEDULES)
            .failure
            .map(|f| f.violation.clause)
    };
    let weak = Mistake::named(mistake).unwrap_or_else(|| panic!("no mistake `{mistake}`"));
    let [reordering, ordered] = machines;
    assert_eq!(broken(reordering, Some(weak)), Some(clause), "{reordering}");
    assert_eq!(broken(reordering, None), None, "{reordering}, unbroken");
    assert_eq!(broken(ordered, Some(weak)), None, "{ordered}");
}

#[test]
fn weakened_orderings_break_the_contract_where_loads_overtake_each_other() {
    for (mistake, scenario, machines, clause) in [
        // Initiator and target look after they have counted. Posts and receipts are in one order.
        ("InboxLooksCross", "nested-posting", RISCV, Clause::C7),
        ("InboxPostsCross", "nested-posting", RISCV, Clause::C7),
        // A CPU that loads a space looks after it has entered. Entering a space and flushing it are in one order.
        ("SpaceReadEarly", "switch-unmap", RISCV, Clause::C1),
        ("SpaceAnnouncesLate", "switch-unmap", RISCV, Clause::C1),
        ("LedgerReadRelaxed", "lazy-background", RISCV, Clause::C1),
        // Tags are given out as the last holder of the lock left them.
        ("TagLockTakenRelaxed", "rollover-switch", ARM, Clause::C5),
        // The weakened swap does not publish the waiter's place in the queue either. Where stores are unordered, the
        // holder passes the lock to a place that isn't set up yet, and the waiter waits for ever.
        ("VmLockTakenRelaxed", "vm-table-free", ["riscv-reordering", "x86"], Clause::C7),
    ] {
        shows(mistake, scenario, machines, clause);
    }
}

/// Draws programs of two CPUs for these machines.
fn drawn(over_vm: bool) -> impl Iterator<Item = RecordedProgram> {
    let mut rng = Rng::new(11);
    let programs = std::iter::from_fn(move || {
        let program = match over_vm {
            true => random::calls_program(&mut rng, LargePages::Seldom),
            false => random::engine_program(&mut rng),
        };
        let mut recorded = random::place(&mut rng, program);
        let machines = [ARM, RISCV][rng.below(2) as usize];
        recorded.kind = *MachineKind::named(machines[0]).expect("a machine");
        Some(recorded)
    });
    programs.filter(|recorded| recorded.program.cpus() == 2)
}

fn search_program(recorded: &RecordedProgram, mistake: Option<Mistake>, schedules: u64) -> Report {
    let scenario = Scenario::generated("generated", &recorded.program);
    search(
        Case { scenario: &scenario, kind: recorded.kind, policy: recorded.policy, mistake },
        schedules,
    )
}

#[test]
fn nothing_breaks_in_programs_that_are_drawn() {
    let mut early = 0;
    for recorded in drawn(false).take(60).chain(drawn(true).take(10)) {
        let report = search_program(&recorded, None, 30);
        if let Some(failure) = report.failure {
            panic!("{}\n{}", failure.violation, recorded.to_toml());
        }
        early += report.coverage.get(ReachGoal::Machine(MachineEvent::LoadedEarly));
    }
    assert!(early > 100, "only {early} loads were early");
}

#[test]
fn orderings_that_are_weaker_show_in_programs_that_are_drawn() {
    for (name, over_vm) in [("SpaceAnnouncesLate", false), ("VmLockTakenRelaxed", true)] {
        let mistake = Mistake::named(name);
        let broken = |recorded: &RecordedProgram| {
            let report = search_program(recorded, mistake, 60);
            report.failure.is_some() && search_program(recorded, None, 60).failure.is_none()
        };
        let found = drawn(over_vm).take(30_000).find(broken);
        assert!(found.is_some(), "{name}");
    }
}
