//! Draws programs at random, and changes them.
//!
//! Programs are drawn by swarms (Groce et al., ISSTA 2012): each program may use only a few kinds of operations and a
//! few pages, drawn anew every time. So its operations meet, and operations that were left out can't hide anything.
//! Operations come in *phrases* (for example: open a batch, change an entry, finish the batch), which are cut, spread
//! over CPUs and mixed. Each grammar has its own module of phrases: [`phrases`], [`calls`].

mod calls;
mod engine;
mod phrases;
mod whole;

pub use calls::LargePages;
pub use calls::calls_program;
pub(super) use calls::calls_program_like;
pub use whole::engine_program;
pub(super) use whole::engine_program_like;

use super::text::RecordedProgram;
use crate::action::MAX_CPUS;
use crate::generated::program::{CpuProgram, Program, Shape, WINDOW};
use crate::kind::MachineKind;
use crate::schedule::Rng;
use calls::CallSwarm;
use engine::Swarm;
use quell::{Policy, TagPolicy};

impl Rng {
    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn within(&mut self, range: &std::ops::Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Draws one of them by weight.
    pub(super) fn weigh<T: Copy>(&mut self, of: &[(u64, T)]) -> T {
        let mut at = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, one) in of {
            if at < *weight {
                return *one;
            }
            at -= weight;
        }
        of[0].1
    }

    /// Draws a number from 1 to `most`. Small numbers are more likely.
    fn few(&mut self, most: u64) -> u64 {
        let mut count = 1;
        while count < most && self.below(5) < 3 {
            count += 1;
        }
        count
    }
}

/// Draws a program, a machine and a policy.
pub fn draw(rng: &mut Rng) -> RecordedProgram {
    let program =
        if rng.below(5) < 3 { engine_program(rng) } else { calls_program(rng, LargePages::Seldom) };
    place(rng, program)
}

/// Draws a machine whose loads overtake each other.
pub(super) fn reordering_machine(rng: &mut Rng) -> MachineKind {
    let all: Vec<_> = MachineKind::ALL.iter().filter(|kind| kind.reorders).copied().collect();
    rng.pick(&all)
}

/// Draws a machine and a policy for a program.
pub fn place(rng: &mut Rng, program: Program) -> RecordedProgram {
    RecordedProgram {
        kind: rng.pick(MachineKind::ALL),
        policy: policy(rng),
        mistake: None,
        clause: None,
        schedule: Vec::new(),
        program,
    }
}

fn policy(rng: &mut Rng) -> Policy {
    match rng.below(8) {
        0..4 => Policy::ALL,
        4 => Policy::BASELINE.with(quell::Mechanism::Batch),
        5 => Policy::BASELINE,
        _ => Policy {
            batch: rng.one_in(2),
            extents: rng.one_in(2),
            tags: if rng.one_in(3) {
                TagPolicy::Off
            } else {
                TagPolicy::Slots(1 + rng.below(4) as u16)
            },
            lazy_unmap: rng.below(3) > 0,
            concurrent: rng.one_in(2),
            asynchronous: rng.one_in(2),
            inline_requests: rng.one_in(2),
            ..Policy::BASELINE
        },
    }
}

/// Changes a program a little, and sometimes its machine too.
///
/// It may take parts of `other`.
pub fn change(rng: &mut Rng, recorded: &mut RecordedProgram, other: &RecordedProgram) {
    for _ in 0..rng.few(4) {
        match rng.below(16) {
            0 => recorded.kind = rng.pick(MachineKind::ALL),
            1 => recorded.policy = policy(rng),
            _ => match (&mut recorded.program, &other.program) {
                (Program::Engine { shape, cpu }, theirs) => {
                    let mut swarm = Swarm::draw(rng, shape.spaces.into());
                    if rng.below(4) > 0 {
                        swarm = swarm.about(&engine::pages_of(cpu));
                    }
                    let theirs = match theirs {
                        Program::Engine { cpu, .. } => cpu.as_slice(),
                        Program::Calls { .. } => &[],
                    };
                    if rng.one_in(12) {
                        let drawn = whole::shape(rng);
                        *shape = Shape {
                            spaces: shape.spaces,
                            files: shape.files,
                            nmi_page: shape.nmi_page,
                            ..drawn
                        };
                    } else {
                        change_lanes(rng, cpu, theirs, |rng, ops| swarm.phrase(rng, ops));
                    }
                }
                (Program::Calls { memory, cpu }, theirs) => {
                    let large = match memory.fast > WINDOW {
                        true => LargePages::Always,
                        false => LargePages::Never,
                    };
                    let mut swarm = CallSwarm::draw(rng, large);
                    if rng.below(4) > 0 {
                        swarm = swarm.about(&calls::pages_of(cpu), rng);
                    }
                    let theirs = match theirs {
                        Program::Calls { cpu, .. } => cpu.as_slice(),
                        Program::Engine { .. } => &[],
                    };
                    if rng.one_in(12) && large == LargePages::Never {
                        let turns_over = rng.one_in(2);
                        *memory = calls::memory(rng, &swarm, turns_over);
                    } else {
                        change_lanes(rng, cpu, theirs, |rng, ops| swarm.phrase(rng, ops));
                    }
                }
            },
        }
    }
    recorded.schedule.clear();
}

/// The number of operations in a CPU's run above which changes add none.
const LONGEST: usize = 24;

fn change_lanes<O: Copy>(
    rng: &mut Rng,
    cpu: &mut Vec<CpuProgram<O>>,
    theirs: &[CpuProgram<O>],
    phrase: impl Fn(&mut Rng, &mut Vec<O>),
) {
    let at = rng.below(cpu.len() as u64) as usize;
    let before = rng.one_in(6);
    let other = rng.below(cpu.len() as u64) as usize;
    if rng.one_in(30) && cpu.len() < MAX_CPUS {
        let lane = cpu[at].clone();
        cpu.push(lane);
        return;
    }
    if rng.one_in(6) && !theirs.is_empty() {
        let lane = &theirs[rng.below(theirs.len() as u64) as usize];
        cpu[at].run.clone_from(&lane.run);
        return;
    }
    let lane = &mut cpu[at];
    let ops = match before {
        true if !lane.preempts.is_empty() && rng.one_in(2) => &mut lane.preempts,
        true => &mut lane.start,
        false => &mut lane.run,
    };
    let place = rng.below(ops.len() as u64 + 1) as usize;
    match rng.below(8) {
        0..3 if ops.len() < LONGEST => {
            let mut new = Vec::new();
            phrase(rng, &mut new);
            ops.splice(place..place, new);
        }
        3 | 4 if place < ops.len() => {
            ops.remove(place);
        }
        5 if place < ops.len() => {
            let op = ops[place];
            let there = rng.below(ops.len() as u64) as usize;
            if rng.one_in(2) && ops.len() < LONGEST {
                ops.insert(there, op);
            } else {
                ops.swap(there, place);
            }
        }
        6 if place < ops.len() && rng.one_in(2) => {
            let mut new = Vec::new();
            phrase(rng, &mut new);
            ops.splice(place..=place, new);
            ops.truncate(LONGEST);
        }
        6 if place < ops.len() => {
            let op = ops.remove(place);
            let ops = &mut cpu[other].run;
            let there = rng.below(ops.len() as u64 + 1) as usize;
            ops.insert(there, op);
        }
        _ => {
            let mut new = Vec::new();
            phrase(rng, &mut new);
            ops.truncate(place);
            if ops.len() < LONGEST {
                ops.extend(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_drawn_and_changed_can_be_run() {
        let mut rng = Rng::new(3);
        let mut recorded = draw(&mut rng);
        for _ in 0..2000 {
            let other = draw(&mut rng);
            assert_eq!(other.program.check(), Ok(()));
            change(&mut rng, &mut recorded, &other);
            assert_eq!(recorded.program.check(), Ok(()));
            if rng.one_in(20) {
                recorded = other;
            }
        }
    }
}
