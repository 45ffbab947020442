//! Finds the smallest program and schedule that violate the same clause.
//!
//! The program is shrunk first: operations are left out, many at a time and then one by one, idle CPUs are removed, and
//! the machine's sizes are reset to the usual ones. Each smaller program is searched anew, with the seeds that found
//! the last one, because the old schedule doesn't apply to it. Then the schedule is shrunk, as for a scenario.

use super::search::{SchedulePlan, mutant_of, search};
use super::text::RecordedProgram;
use crate::explore;
use crate::generated::program::{CpuProgram, Memory, Program, Shape};
use crate::scenario::Scenario;
use crate::session::{Case, Session};
use quell::Policy;
use quell_vm::contract::Clause;
use quell_vm::contract::Violation;
use quell_vm::contract::timeline::Line;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A violation with a program and a schedule, both shrunk.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The violation.
    pub violation: Violation,
    /// The program, its machine and the schedule.
    pub recorded: RecordedProgram,
}

/// The number of schedules for each smaller program.
const SCHEDULES: u64 = 640;

/// The maximum number of moments in them.
const MOMENTS: u64 = 1_000_000;

/// The maximum number of smaller programs to try.
const ATTEMPTS: u32 = 500;

/// Runs a recorded program under its schedule. Returns the violation, if any.
pub fn replay(recorded: &RecordedProgram) -> Option<Violation> {
    replay_lines(recorded).0
}

/// Runs a recorded program under its schedule. Returns the violation, if any, and the timeline.
pub fn replay_lines(recorded: &RecordedProgram) -> (Option<Violation>, Vec<Line>) {
    let scenario = Scenario::generated("generated", &recorded.program);
    crate::replay::replay(case(recorded, &scenario), recorded.schedule.clone())
}

/// Returns the case to run.
pub(super) fn case<'p>(recorded: &RecordedProgram, scenario: &'p Scenario<'p>) -> Case<'p> {
    Case { scenario, kind: recorded.kind, policy: recorded.policy, mistake: recorded.mistake }
}

/// Searches a program for a schedule that breaks the clause.
fn breaks(recorded: &RecordedProgram, clause: Clause, seed: u64) -> Option<Finding> {
    let scenario = Scenario::generated("generated", &recorded.program);
    let mut session = Session::new(case(recorded, &scenario));
    let same = |violation: &Violation| violation.clause == clause;
    let found = explore::breaks(&mut session, &recorded.schedule)
        .filter(|(_, violation)| same(violation))
        .or_else(|| {
            let plan = SchedulePlan {
                seed,
                count: SCHEDULES,
                most: MOMENTS,
                watched: mutant_of(recorded.mistake),
                ..Default::default()
            };
            search(&mut session, plan, &mut Default::default(), &mut |_| {})
                .filter(|(_, v)| same(v))
        });
    found.map(|(schedule, violation)| Finding {
        violation,
        recorded: RecordedProgram {
            schedule,
            clause: Some(clause.to_string()),
            ..recorded.clone()
        },
    })
}

/// Shrinks a program whose schedule violates a clause, until `stop` is set.
///
/// `seed` is the seed of the search that found the schedule.
pub fn shrink(
    found: RecordedProgram,
    violation: Violation,
    seed: u64,
    stop: &AtomicBool,
) -> Finding {
    let clause = violation.clause;
    let mut best = Finding {
        violation,
        recorded: RecordedProgram { clause: Some(clause.to_string()), ..found },
    };
    let mut attempts = ATTEMPTS;
    loop {
        let before = best.recorded.program.clone();
        for size in [8, 4, 2, 1] {
            let mut at = 0;
            while attempts > 0
                && !stop.load(Relaxed)
                && let Some(program) = smaller(&best.recorded.program, at, size)
            {
                attempts -= 1;
                let recorded = RecordedProgram { program, ..best.recorded.clone() };
                match breaks(&recorded, clause, seed) {
                    Some(found) => best = found,
                    None => at += size,
                }
            }
        }
        let mut number = 0;
        while attempts > 0
            && !stop.load(Relaxed)
            && let Some(recorded) = simpler(&best.recorded, number)
        {
            number += 1;
            if recorded == best.recorded {
                continue;
            }
            attempts -= 1;
            if let Some(found) = breaks(&recorded, clause, seed) {
                best = found;
            }
        }
        if stop.load(Relaxed) {
            return best;
        }
        if attempts == 0 || best.recorded.program == before {
            break;
        }
    }
    let scenario = Scenario::generated("generated", &best.recorded.program);
    let mut session = Session::new(case(&best.recorded, &scenario));
    let trail = best.recorded.schedule.clone();
    let failure = explore::shrink(&mut session, trail, best.violation);
    Finding {
        violation: failure.violation,
        recorded: RecordedProgram { schedule: failure.deviations, ..best.recorded.clone() },
    }
}

/// Returns the program without `size` operations from number `at` on, or `None` if there are no more.
fn smaller(program: &Program, at: usize, size: usize) -> Option<Program> {
    fn cut<O>(lanes: &mut [CpuProgram<O>], at: usize, size: usize) -> bool {
        let (mut before, mut any) = (0, false);
        // The run comes first, because the preparation is mostly needed.
        let (runs, others): (Vec<_>, Vec<_>) = lanes
            .iter_mut()
            .map(|lane| (&mut lane.run, [&mut lane.preempts, &mut lane.start]))
            .unzip();
        for ops in runs.into_iter().chain(others.into_iter().flatten()) {
            let count = ops.len();
            let from = at.max(before).min(before + count) - before;
            let until = (at + size).max(before).min(before + count) - before;
            any |= from < until;
            ops.drain(from..until);
            before += count;
        }
        any
    }
    let mut program = program.clone();
    let any = match &mut program {
        Program::Engine { cpu, .. } => cut(cpu, at, size),
        Program::Calls { cpu, .. } => cut(cpu, at, size),
    };
    any.then_some(program)
}

/// Returns the program with one special setting replaced by the usual one, or `None` if there are no more.
fn simpler(recorded: &RecordedProgram, number: usize) -> Option<RecordedProgram> {
    fn drop_idle<O>(lanes: &mut Vec<CpuProgram<O>>) {
        lanes.retain(|lane| lane.all().next().is_some());
        if lanes.is_empty() {
            lanes.push(CpuProgram::default());
        }
    }
    let mut next = recorded.clone();
    match (&mut next.program, number) {
        (_, 0) => next.policy = Policy::ALL,
        (Program::Engine { cpu, .. }, 1) => drop_idle(cpu),
        (Program::Calls { cpu, .. }, 1) => drop_idle(cpu),
        (Program::Engine { shape, .. }, 2..15) => {
            let usual = Shape::default();
            match number {
                2 => shape.first_cpu = usual.first_cpu,
                3 => shape.spaces = 1,
                4 => shape.spaces = usual.spaces.min(shape.spaces),
                5 => shape.files = usual.files,
                6 => shape.ledger = usual.ledger,
                7 => shape.tags = usual.tags,
                8 => shape.spare_bits = 0,
                9 => shape.full_above = usual.full_above,
                10 => (shape.nmis, shape.nmi_page) = (0, 0),
                11 => shape.spurious = 0,
                12 => (shape.preemptions, shape.leaves_space) = (0, false),
                13 => shape.open_batches = 0,
                _ => shape.unscheduled = 0,
            }
        }
        (Program::Calls { memory, .. }, 2..14) => {
            let usual = Memory::default();
            match number {
                2 => memory.fast = usual.fast,
                3 => memory.slow = usual.slow,
                4 => memory.ledger = usual.ledger,
                5 => memory.swap = usual.swap,
                6 => memory.together = usual.together,
                7 => memory.cache = usual.cache,
                8 => memory.ahead = usual.ahead,
                9 => memory.zeroed = usual.zeroed,
                10 => memory.demotes = usual.demotes,
                11 => memory.reclaims_idle = usual.reclaims_idle,
                12 => memory.catches_up = usual.catches_up,
                _ => memory.nmis = 0,
            }
        }
        _ => return None,
    }
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generated::program::{BatchPurpose, CallOp, EngineOp, ReportMode};
    use crate::kind::MachineKind;
    use crate::mistake::Mistake;

    fn lane(start: &[EngineOp], run: &[EngineOp]) -> CpuProgram<EngineOp> {
        CpuProgram { start: start.to_vec(), run: run.to_vec(), ..CpuProgram::default() }
    }

    #[test]
    fn every_operation_can_be_left_out() {
        let program = Program::Calls {
            memory: Memory::default(),
            cpu: vec![
                CpuProgram {
                    start: vec![CallOp::Nothing],
                    run: vec![CallOp::Idle, CallOp::Spawn],
                    ..CpuProgram::default()
                },
                CpuProgram { run: vec![CallOp::Fork], ..CpuProgram::default() },
            ],
        };
        for at in 0..4 {
            let less = smaller(&program, at, 1).expect("there are four");
            assert_eq!(less.operations(), 3);
        }
        assert_eq!(smaller(&program, 1, 8).map(|less| less.operations()), Some(1));
        assert_eq!(smaller(&program, 4, 1), None);
    }

    #[test]
    fn what_is_not_needed_goes() {
        use EngineOp::{Finish, Lazy, Map, Open, Pay, Read, Switch, Unmap};
        let unmap = Unmap { batch: 0, space: 0, page: 0, pages: 1, report: ReportMode::Each };
        let open = Open { batch: 0, purpose: BatchPurpose::Call };
        let map = |page| Map { space: 0, page, write: true };
        let switch = Switch { space: 0 };
        let read = Read { page: 0 };
        let cpu = vec![
            lane(&[map(0), map(1), switch], &[read, open, unmap, Finish { batch: 0 }, Pay, read]),
            lane(&[switch], &[Pay, read, Lazy, switch, read, Pay]),
            lane(&[switch, Lazy], &[Pay]),
        ];
        let recorded = RecordedProgram {
            kind: *MachineKind::named("x86").expect("a machine"),
            policy: Policy::ALL,
            mistake: Mistake::named("SkipInterrupt"),
            clause: None,
            schedule: Vec::new(),
            program: Program::Engine { shape: Shape { spaces: 3, ..Shape::default() }, cpu },
        };
        let scenario = Scenario::generated("generated", &recorded.program);
        let mut session = Session::new(case(&recorded, &scenario));
        let plan = SchedulePlan { seed: 1, count: 2000, most: MOMENTS, ..Default::default() };
        let (schedule, violation) =
            search(&mut session, plan, &mut Default::default(), &mut |_| {}).expect("it is broken");
        let found = RecordedProgram { schedule, ..recorded.clone() };
        let find = shrink(found, violation.clone(), 1, &AtomicBool::new(false));
        assert_eq!(find.violation.clause, violation.clause);
        assert_eq!(find.recorded.program.cpus(), 2, "{}", find.recorded.to_toml());
        assert!(find.recorded.program.operations() <= 8, "{}", find.recorded.to_toml());
        let again = replay(&find.recorded).expect("it is still broken");
        assert_eq!(again, find.violation);
        let unbroken = RecordedProgram { mistake: None, ..find.recorded };
        assert_eq!(replay(&unbroken), None);
    }
}
