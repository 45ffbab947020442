//! Every pair of calls of the engine: CPU 0 makes the first while CPU 1 makes the second, or while a thread that preempts
//! CPU 0 makes it. CPU 2 runs the same space.
//!
//! Authors choose the calls of scenarios, and chance those of generated programs. Here each call meets each other one.

use quell::{Counter, Policy};
use quell_adversary::generated::Program;
use quell_adversary::generated::program::EngineOp::{self, *};
use quell_adversary::generated::program::{BatchPurpose, CpuProgram, ReportMode, Shape};
use quell_adversary::replay::replay_code;
use quell_adversary::{
    Budget, Case, Exploration, MachineKind, ReachGoal, Scenario, Session, explore,
};

/// A call: the operations that make it possible, and its own.
type Call = (Vec<EngineOp>, Vec<EngineOp>);

/// Returns every call. The two CPUs have different pages, batches and files.
fn calls(me: u8) -> Vec<Call> {
    let (space, batch, file) = (0, me, me);
    let first = 2 * u64::from(me);
    let call = Open { batch, purpose: BatchPurpose::Call };
    let reclaim = Open { batch, purpose: BatchPurpose::Reclaim };
    let unmap =
        |page: u64, pages: u64| Unmap { batch, space, page, pages, report: ReportMode::Each };
    let (home, away) = (Switch { space }, Switch { space: 1 });
    let lazily = ReclaimLazily { files: 1 << file };
    let finish = Finish { batch };
    let at_once = UnmapAtOnce { space, page: first, whole: false };
    let observe = Confirm { space, page: 0, pages: 4 };
    // One CPU reuses the frame whose flush is deferred from the start, and the other reinstates it.
    let takes = match me {
        0 => Reuse { file: 2 },
        _ => Reinstate { file: 2 },
    };
    let coalesced = UnmapCoalesced { space, page: first };
    vec![
        (vec![away], vec![home]),
        (vec![away], vec![CatchUp, home]),
        (vec![], vec![away]),
        (vec![], vec![away, home]),
        (vec![], vec![Lazy]),
        (vec![Lazy], vec![Resume, home]),
        (vec![], vec![Offline]),
        (vec![Lazy], vec![Offline]),
        (vec![Offline], vec![Online, home]),
        (vec![], vec![CatchUp]),
        (vec![], vec![coalesced]),
        (vec![], vec![at_once]),
        (vec![], vec![call, unmap(first, 1), Start { batch }]),
        (vec![], vec![call, unmap(first, 2), Start { batch }]),
        (vec![], vec![call, unmap(first, 1), finish]),
        (vec![], vec![call, unmap(first + 1, 1), unmap(first, 1), finish]),
        (vec![], vec![reclaim, unmap(first, 1), unmap(first + 1, 1), finish]),
        (vec![], vec![lazily]),
        (vec![], vec![lazily, Reuse { file }]),
        (vec![], vec![observe]),
        (vec![], vec![Pay]),
        (vec![], vec![takes]),
    ]
}

/// Makes the program in which two calls meet. If `preempts` is set, the second preempts the first.
fn program(first: &Call, second: &Call, preempts: bool, shape: Shape) -> Program {
    let space = 0;
    let home = Switch { space };
    let mut start: Vec<_> = (0..4)
        .map(|page| Map { space, page, write: true })
        .chain((0..3).map(|file| MapFile { space, file, write: false }))
        .chain([home, ReclaimLazily { files: 0b100 }])
        .collect();
    let mut other = CpuProgram { start: vec![home], ..CpuProgram::default() };
    let third = other.clone();
    start.extend(&first.0);
    let mut one = CpuProgram { start, run: first.1.clone(), preempts: vec![] };
    match preempts {
        true => one.preempts = second.1.clone(),
        false => {
            other.start.extend(&second.0);
            other.run = second.1.clone();
        }
    }
    let shape = Shape { preemptions: preempts.into(), ..shape };
    let cpu = vec![one, other, third];
    Program::Engine { shape, cpu }
}

/// What must happen in some pair. Otherwise calls would do nothing.
const HAPPENS: [Counter; 13] = [
    Counter::EscalatedContention,
    Counter::Merged,
    Counter::EscalatedGap,
    Counter::ServedEarly,
    Counter::SkippedLazy,
    Counter::SkippedOffline,
    Counter::SwitchBehind,
    Counter::FlushesDeferred,
    Counter::DeferralsRefused,
    Counter::FlushedForReuse,
    Counter::FlushedInBackground,
    Counter::FlushedPending,
    Counter::Reinstated,
];

/// Lets every call meet every other one, and searches for a violation with this budget.
fn every_pair_holds(budget: impl Fn() -> Budget) {
    let mut never = HAPPENS.to_vec();
    let outboxes = Policy { inline_requests: false, ..Policy::ALL };
    let waits = Policy { asynchronous: false, concurrent: false, ..Policy::ALL };
    for (machine, policy, ledger) in [
        ("x86-pcid", Policy::ALL, 4),
        ("x86-pcid", Policy::ALL, 1),
        ("x86-pcid", outboxes, 4),
        ("x86-pcid", waits, 4),
        ("x86-pcid", Policy::BASELINE, 0),
        ("x86", Policy::ALL, 4),
    ] {
        let kind = *MachineKind::named(machine).expect("a machine");
        let shape = Shape { ledger, ..Shape::default() };
        for (first, second) in
            (calls(0).iter()).flat_map(|one| calls(1).into_iter().map(move |two| (one, two)))
        {
            for preempts in [false, true] {
                let program = program(first, &second, preempts, shape);
                assert_eq!(program.check(), Ok(()));
                let scenario = Scenario::generated("pair", &program);
                let case = Case { scenario: &scenario, kind, policy, mistake: None };
                let exploration = Exploration { case, budget: budget(), seed: 1, depth: 4 };
                let mut session = Session::new(case);
                let report = explore(&mut session, &exploration, |_, _| true);
                never.retain(|&counter| session.coverage.get(ReachGoal::Engine(counter)) == 0);
                if let Some(failure) = &report.failure {
                    let code = replay_code(&case, &failure.deviations);
                    panic!("{}\n{first:?} {second:?}\n{code}", failure.violation);
                }
            }
        }
    }
    assert_eq!(never, [], "no pair does this");
}

#[test]
fn two_calls_may_meet_anywhere() {
    every_pair_holds(|| Budget::Schedules(12));
}

#[test]
#[ignore = "minutes: `cargo xtask ci exhaustive`"]
fn two_calls_may_meet_in_many_orders() {
    every_pair_holds(|| Budget::Schedules(300));
}
