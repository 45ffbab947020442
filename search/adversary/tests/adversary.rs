//! The search with a small budget: the contract holds, every known mistake is found, and runs repeat.
//!
//! `quell explore` does the same with larger budgets.

use crate::{holds, search};
use quell::Policy;
use quell_adversary::bare_kernel::{BareProgram, frame};
use quell_adversary::explore::POLICIES;
use quell_adversary::replay::{parse_code, replay};
use quell_adversary::scenario::{Scenario, Script};
use quell_adversary::{Budget, Case, MachineKind, Mistake};
use quell_vm::contract::Clause;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn cases(policy: Policy) -> impl Iterator<Item = Case<'static>> {
    Scenario::ALL.iter().flat_map(move |scenario| {
        let kinds = MachineKind::ALL.iter();
        kinds.filter(|kind| scenario.runs_on(kind)).map(move |kind| Case {
            scenario,
            kind: *kind,
            policy,
            mistake: None,
        })
    })
}

#[test]
fn the_contract_holds_with_every_mechanism_on_and_nothing_passes_vacuously() {
    for case in cases(Policy::ALL) {
        // Most programs reach their transitions in a hundred schedules, and the others need more. `cargo xtask ci
        // schedules` runs more.
        let few = holds(case, Budget::Schedules(150));
        let missed = match few.missed[..] {
            [] => few.missed,
            _ => holds(case, Budget::Schedules(2000)).missed,
        };
        assert!(
            missed.is_empty(),
            "{} on {} never reached {missed:?}",
            case.scenario.name,
            case.kind.name,
        );
    }
}

#[test]
fn the_contract_holds_with_each_mechanism_alone_and_with_none() {
    for policy in POLICIES {
        for case in cases(policy) {
            holds(case, Budget::Schedules(10));
        }
    }
}

/// Checks that each case can be printed, whatever words its run uses.
#[test]
fn every_case_can_be_shown() {
    for case in cases(Policy::ALL) {
        let (violation, lines) = replay(case, Vec::new());
        let name = case.scenario.name;
        assert!(violation.is_none(), "{name}: {violation:?}");
        assert!(!lines.is_empty(), "{name}");
    }
}

/// Checks that a mistake breaks this clause in a scenario on each of these machines.
fn breaks(scenario: &str, machines: &[&str], mistake: &str, clause: Clause) {
    let scenario = Scenario::named(scenario).expect("a scenario");
    for machine in machines {
        let case = Case { mistake: Mistake::named(mistake), ..Case::on(scenario, machine) };
        let failure = search(case, Budget::Schedules(2000)).failure;
        let broken = failure.map(|failure| failure.violation.clause);
        assert_eq!(broken, Some(clause), "{mistake} on {machine}");
    }
}

#[test]
fn what_a_kept_pointer_leads_to_is_old_once_the_pointer_has_gone() {
    let machines = ["x86", "x86-pcid", "x86-broadcast", "arm-asid8", "riscv"];
    for mistake in ["TablesFlushedAsLeaf", "BasePagesInLargeStrides"] {
        breaks("table-move", &machines, mistake, Clause::C3);
    }
}

/// Returns whether a test can run every schedule of a program of two CPUs. `quell explore --exhaustive` runs larger
/// programs for as long as its user likes.
fn is_small(case: &Case) -> bool {
    let broadcast = case.kind.broadcasts();
    let riscv = case.kind.name.starts_with("riscv");
    if case.kind.reorders {
        // These have up to ten times as many states.
        return match case.scenario.name {
            "table-free" | "table-move" => true,
            "unmap-access" | "protect-access" | "execute-access" | "switch-unmap" => broadcast,
            "first-switch-unmap" | "idle-unmap" | "idle-table-free" | "cross-shootdown" => {
                broadcast
            }
            _ => false,
        };
    }
    case.scenario.cpus == 2
        && match (case.scenario.name, case.scenario.program) {
            ("cross-shootdown" | "nmi-unmap" | "nmi-idle" | "reclaim-unmap" | "idle-leave", _)
            | ("idle-return" | "nmi-alone" | "lazy-reuse-refill", _) => {
                broadcast
            }
            ("nmi-switch" | "rollover-switch" | "rollover-table" | "rollover-table-once", _)
            | ("isolated-unmap", _)
            | ("nested-posting" | "nested-outbox" | "nested-coalesced" | "nested-alone", _)
            | ("many-batches" | "lazy-tables", _)
            // The CPU that retires the space sends requests until the other CPU has left.
            | ("retire-running", _) => false,
            ("own-nmi" | "own-program" | "own-program-deferral" | "lazy-late-unmap", _)
            | ("overflow-access" | "overflow-tables" | "lazy-late-fill", _) => !riscv,
            ("overflow-unmap" | "overflow-switch" | "overflow-own", _)
            | ("lazy-late-pending", _) => broadcast,
            ("spurious", _) => !riscv,
            (_, Script::Engine(_)) => true,
            // One call of the manager is as long as a whole program over the engine.
            ("vm-unmap-access", _) => !riscv,
            ("vm-table-free-idle" | "vm-reclaim-protect" | "vm-migrate-write", _)
            | ("vm-idle-unmap" | "vm-offline-unmap" | "vm-rollover-unmap", _) => broadcast,
            _ => false,
        }
}

fn small_cases() -> impl Iterator<Item = Case<'static>> {
    cases(Policy::ALL).filter(is_small)
}

#[test]
#[ignore = "minutes: `cargo xtask ci exhaustive`"]
fn small_scenarios_hold_in_every_schedule() {
    let (mut count, mut schedules, mut states, mut all) = (0, 0, 0, 0.0);
    let mut unfinished = Vec::new();
    for case in small_cases() {
        let report = holds(case, Budget::Exhaustive(5_000_000));
        let (scenario, machine) = (case.scenario.name, case.kind.name);
        if !report.exhaustive {
            unfinished.push(format!("{scenario} on {machine}"));
        }
        println!(
            "{scenario} on {machine}: {} schedules run, {} states that stand for {:.1e} or more",
            report.schedules, report.states, report.stands_for
        );
        assert!(!report.exhaustive || report.stands_for >= report.schedules as f64);
        count += 1;
        all += report.stands_for;
        schedules += report.schedules;
        states += report.states;
    }
    println!("{count} cases, {schedules} schedules run, {states} states for {all:.1e} or more");
    assert!(unfinished.is_empty(), "did not end: {unfinished:?}");
    // README.md contains both numbers. The number of schedules depends on which states the compiler's code makes equal.
    assert_eq!(count, 621, "cases are small");
    assert!(all >= 1e15, "{all:.1e} schedules");
}

#[test]
fn scenarios_have_names_of_their_own_and_say_what_must_happen() {
    let mut names = std::collections::HashSet::new();
    for scenario in Scenario::ALL {
        assert!(names.insert(scenario.name), "{} twice", scenario.name);
        assert!(
            scenario.must[0].is_some(),
            "{} could pass without anything happening",
            scenario.name
        );
    }
}

#[test]
fn bad_codes_are_refused_with_the_reason() {
    for (code, reason) in [
        ("nonsense", "is not a replay code"),
        ("nonsense:x86:all:", "no scenario `nonsense`"),
        ("unmap-access:pdp11:all:", "no machine `pdp11`"),
        ("unmap-access:x86:some:", "`some` is not a mechanism"),
        ("unmap-access:x86:all!Unknown:", "no mutant `Unknown`"),
        ("unmap-access:x86:all:12", "two hexadecimal numbers"),
    ] {
        let error = parse_code(code).expect_err(code);
        assert!(error.contains(reason), "{error}");
    }
}

/// The frames from which CPU 0 has read, as bits.
static READ_FROM: AtomicU64 = AtomicU64::new(0);

/// The number of stale translations for one page. An access used to have room for fewer.
const LEFT_BEHIND: u64 = 12;

const MANY_LEFT_BEHIND: Scenario = Scenario {
    name: "many-left-behind",
    cpus: 2,
    program: Script::Engine(BareProgram {
        first: |k| (0..LEFT_BEHIND).for_each(|at| _ = k.fill(frame(at), at)),
        all: |k, cpu| {
            if cpu == 0 {
                for at in 0..LEFT_BEHIND {
                    k.map(0, 0, frame(at), false).clear(0, 0);
                }
                if let Some(at) = k.load(0) {
                    READ_FROM.fetch_or(1 << at, Relaxed);
                }
            }
        },
        ..BareProgram::NONE
    }),
    ..*Scenario::ALL.first().expect("there are scenarios")
};

#[test]
fn an_access_may_use_every_translation_that_was_left_behind() {
    let case = Case::on(&MANY_LEFT_BEHIND, "x86");
    holds(case, Budget::Schedules(1000));
    assert_eq!(READ_FROM.load(Relaxed), (1 << LEFT_BEHIND) - 1);
}

/// Tests that need mistakes of the source. They run only in the copy that contains these: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;
    use quell_adversary::mutants::{self, Kill};
    use quell_adversary::replay::replay_code;
    use quell_vm::contract::timeline::Shape;

    /// Checks that every mutant is killed, and that the replay code reproduces it.
    #[test]
    fn every_mutant_is_killed() {
        let mut survivors = Vec::new();
        for mistake in Mistake::all() {
            match mutants::test(mistake, 1, |_| true).killed {
                None => survivors.push(mistake.name()),
                Some(Kill::Clearing(_)) => {}
                Some(Kill::Run(case, failure)) => {
                    let code = replay_code(&case, &failure.deviations);
                    let (case, deviations) = parse_code(&code).expect("a code of one's own");
                    let (violation, lines) = replay(case, deviations);
                    let clause = violation.map(|violation| violation.clause);
                    assert_eq!(clause, Some(failure.violation.clause), "{code}");
                    assert!(!lines.is_empty(), "{code}");
                }
            }
        }
        assert_eq!(survivors, Vec::<&str>::new());
    }

    #[test]
    fn fetches_have_rights_of_their_own() {
        let machines = ["x86", "x86-broadcast", "arm-asid8", "riscv"];
        let mistake = "VmExecutionUnflushed";
        breaks("vm-execute-sync", &machines, mistake, Clause::C3);
        breaks("execute-access", &["x86", "riscv"], "SkipWait", Clause::C3);
    }

    #[test]
    fn what_lies_beyond_the_end_of_a_file_is_old_once_truncation_has_returned() {
        let machines = ["x86", "x86-broadcast", "arm-asid8", "riscv"];
        let mistake = "VmTruncatesUnflushed";
        breaks("vm-discard-truncate", &machines, mistake, Clause::C3);
    }

    /// Checks each step of a flush without a batch. No pending batch covers such a flush, so nothing makes up for a
    /// missing step.
    #[test]
    fn a_flush_without_a_batch_needs_each_of_its_steps() {
        let scenario = Scenario::named("switch-at-once").expect("a scenario");
        for mistake in ["SkipGenerationBump", "SkipPost", "SkipWait", "SwitchPublishesLate"] {
            let case = Case { mistake: Mistake::named(mistake), ..Case::on(scenario, "x86-pcid") };
            assert!(case.mistake.is_some(), "{mistake}");
            let failure = search(case, Budget::Schedules(20_000)).failure;
            assert!(failure.is_some(), "{mistake} is not noticed");
        }
    }

    /// Checks that leaving out equivalent orders and known states loses no mistake: the exhaustive search finds each
    /// mistake that a random search finds.
    #[test]
    #[ignore = "minutes: `cargo xtask ci exhaustive`"]
    fn the_exhaustive_search_misses_nothing() {
        let machines = ["x86-pcid", "arm-asid8", "riscv"];
        let cases = small_cases().filter(|case| machines.contains(&case.kind.name));
        let mut found = 0;
        for (case, mistake) in cases.flat_map(|case| Mistake::all().map(move |m| (case, m))) {
            let case = Case { mistake: Some(mistake), ..case };
            if search(case, Budget::Schedules(200)).failure.is_none() {
                continue;
            }
            let all = search(case, Budget::Exhaustive(300_000));
            assert!(
                all.failure.is_some(),
                "{} in {} on {}",
                mistake.name(),
                case.scenario.name,
                case.kind.name
            );
            found += 1;
        }
        println!("{found} mistakes compared");
        assert!(found > 300, "only {found} mistakes were compared");
    }

    #[test]
    fn a_failure_is_shrunk_and_repeats_from_its_code() {
        let scenario = Scenario::named("unmap-access").expect("it is the first scenario");
        let mistake = Mistake::named("SkipWait");
        let case = Case { mistake, ..Case::on(scenario, "x86-pcid") };
        let failure = search(case, Budget::Schedules(2000))
            .failure
            .expect("a wait that is left out shows at once");
        assert!(failure.deviations.len() <= failure.found_with);
        let code = replay_code(&case, &failure.deviations);
        let (again, deviations) = parse_code(&code).expect("a code that was just made");
        assert_eq!(deviations, failure.deviations);
        for _ in 0..2 {
            let (violation, lines) = replay(again, deviations.clone());
            assert_eq!(violation.as_ref(), Some(&failure.violation));
            assert!(lines.iter().any(|line| line.shape == Shape::Breaks));
        }
    }

    /// Checks that break before make is judged when the manager skips a flush. On Arm, a fault maps another frame, or a
    /// file's page in place of its copy. On Arm and x86, a base page or a table takes the place of a large page, and so
    /// does the table of a split.
    #[test]
    fn the_managers_breaks_before_makes_are_judged_where_the_architecture_asks() {
        const BOTH: &[&str] = &["arm-asid8", "x86-pcid"];
        for (mutant, scenario, judged_on) in [
            ("VmRefillsUnflushed", "vm-discard-refill", &BOTH[..1]),
            ("VmRefillsUnflushed", "vm-discard-refill-smaller", BOTH),
            ("VmRefillsFileUnflushed", "vm-discard-refill-file", &BOTH[..1]),
            ("VmLinksTableUnflushed", "vm-discard-refill-table", BOTH),
            ("VmLinksBeforeFlush", "vm-split-migrate", BOTH),
        ] {
            for machine in ["arm-asid8", "x86-pcid", "riscv"] {
                let judged = judged_on.contains(&machine);
                // Some of them need thousands of schedules. The search ends when it has found a violation.
                let schedules = if judged { 100_000 } else { 500 };
                let scenario = Scenario::named(scenario).expect("a scenario");
                let case = |mistake| Case { mistake, ..Case::on(scenario, machine) };
                let report = search(case(Mistake::named(mutant)), Budget::Schedules(schedules));
                let found = report.failure.map(|failure| failure.violation);
                let named = found.as_ref().is_some_and(|violation| {
                    violation.clause == Clause::Misuse
                        && violation.account.starts_with("break before make: ")
                        && violation.address.is_some()
                        && violation.other.is_some()
                });
                assert_eq!(named, judged, "{mutant} in {} on {machine}: {found:?}", scenario.name);
                holds(case(None), Budget::Schedules(500));
            }
        }
    }
}
