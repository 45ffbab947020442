//! Machines whose loads overtake each other. Orderings that are too weak break the contract there, but not on the same
//! machine if it satisfies loads at their step.

use quell::Policy;
use quell_adversary::coverage::{MachineEvent, ReachGoal};
use quell_adversary::generate::RecordedProgram;
use quell_adversary::generate::random::{self, LargePages};
use quell_adversary::scenario::Scenario;
use quell_adversary::schedule::Rng;
use quell_adversary::{Budget, Case, Exploration, MachineKind, Mistake, Report, Session, explore};
use quell_vm::contract::Clause;

/// A machine that reorders, and the same machine without reordering.
type Machines = [&'static str; 2];

const ARM: Machines = ["arm-reordering", "arm-asid8"];
const RISCV: Machines = ["riscv-reordering", "riscv"];

fn kind(name: &str) -> MachineKind {
    *MachineKind::named(name).unwrap_or_else(|| panic!("no machine `{name}`"))
}

fn search(case: Case, schedules: u64) -> Report {
    let exploration = Exploration {
        case,
        // Searches divide this by `one_in`.
        budget: Budget::Schedules(schedules * case.scenario.one_in),
        seed: 1,
        depth: 4,
    };
    explore(&mut Session::new(case), &exploration, |_, _| true)
}

/// Checks that a weakened ordering breaks a clause in a scenario, but only on the first machine.
fn shows(mistake: &str, scenario: &str, machines: Machines, clause: Clause) {
    const SCHEDULES: u64 = 2_000;
    let broken = |machine: &str, mistake: Option<Mistake>| {
        let case = Case {
            scenario: Scenario::named(scenario).expect("a scenario"),
            kind: kind(machine),
            policy: Policy::ALL,
            mistake,
        };
        search(case, SCHEDULES).failure.map(|f| f.violation.clause)
    };
    let weak = Mistake::named(mistake).unwrap_or_else(|| panic!("no mistake `{mistake}`"));
    let [reordering, ordered] = machines;
    assert_eq!(broken(reordering, Some(weak)), Some(clause), "{reordering}");
    assert_eq!(broken(reordering, None), None, "{reordering}, unbroken");
    assert_eq!(broken(ordered, Some(weak)), None, "{ordered}");
}

#[test]
fn initiator_and_target_look_after_they_have_counted() {
    shows("InboxLooksCross", "nested-posting", RISCV, Clause::C7);
}

#[test]
fn posts_and_receipts_are_in_one_order() {
    shows("InboxPostsCross", "nested-posting", RISCV, Clause::C7);
}

#[test]
fn a_cpu_that_loads_a_space_looks_after_it_has_entered() {
    shows("SpaceReadEarly", "switch-unmap", RISCV, Clause::C1);
}

#[test]
fn entering_a_space_and_flushing_it_are_in_one_order() {
    shows("SpaceAnnouncesLate", "switch-unmap", RISCV, Clause::C1);
}

#[test]
fn what_is_paid_is_read_with_what_was_paid() {
    shows("LedgerReadRelaxed", "lazy-background", RISCV, Clause::C1);
}

#[test]
fn tags_are_given_out_as_the_last_holder_of_the_lock_left_them() {
    shows("TagLockTakenRelaxed", "rollover-switch", ARM, Clause::C5);
}

#[test]
fn a_lock_is_handed_over_to_the_waiter_that_queued() {
    // The weakened swap does not release the waiter's place in the queue either. This shows on every machine whose
    // stores are unordered: the holder's hand-over is lost, and the waiter never ends.
    let machines = ["riscv-reordering", "x86"];
    shows("VmLockTakenRelaxed", "vm-table-free", machines, Clause::C7);
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
        recorded.kind = kind(machines[0]);
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
