//! The settings of a generated program's run, and the run itself, by the kernel of its grammar.

use super::{calls, kernel};
use crate::coverage::Coverage;
use crate::generated::program::{CallOp, Program};
use crate::stage::Stage;
use quell_vm::contract::timeline::Line;

/// A program with the settings of its run.
pub(crate) trait RunSettings {
    fn frames(&self) -> usize;
    fn table_frames(&self) -> usize;
    fn levels(&self) -> u8;
    /// Returns the most NMIs, preemptions and spurious interrupts of a run.
    fn uninvited(&self) -> [u8; 3];
    /// Returns a number of steps that a run never reaches.
    fn steps(&self) -> u32;
    /// Returns a number of fair decisions that one operation never reaches. A call may process each frame of memory.
    fn patience(&self) -> u32;
    fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line>;
}

impl RunSettings for Program {
    fn frames(&self) -> usize {
        match self {
            Program::Engine { shape, cpu } => kernel::Layout::of(shape, cpu).frames(),
            Program::Calls { memory, .. } => calls::frames(memory),
        }
    }

    fn table_frames(&self) -> usize {
        match self {
            Program::Engine { shape, cpu } => kernel::Layout::of(shape, cpu).tables(),
            Program::Calls { memory, .. } => calls::frames(memory),
        }
    }

    fn levels(&self) -> u8 {
        match self {
            Program::Engine { .. } => 3,
            Program::Calls { .. } => 4,
        }
    }

    fn uninvited(&self) -> [u8; 3] {
        match self {
            Program::Engine { shape, .. } => [shape.nmis, shape.preemptions, shape.spurious],
            Program::Calls { memory, .. } => [memory.nmis, 0, 0],
        }
    }

    fn steps(&self) -> u32 {
        match self {
            Program::Engine { .. } => 8_000,
            Program::Calls { memory, cpu } => {
                let ops = cpu.iter().flat_map(|lane| &lane.run);
                let forks = ops.filter(|op| matches!(op, CallOp::Fork)).count() as u32;
                // A fork reads every entry of every table.
                let rest = if memory.fast < 500 { 8_000 } else { 32_000 };
                rest + 12_000 * forks
            }
        }
    }

    fn patience(&self) -> u32 {
        match self {
            Program::Engine { .. } => 32_000,
            Program::Calls { memory, .. } => 32_000 + 400 * (memory.fast + memory.slow) as u32,
        }
    }

    fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
        match self {
            Program::Engine { shape, cpu } => {
                kernel::perform(shape, cpu, self.flags(), stage, coverage)
            }
            Program::Calls { memory, cpu } => {
                calls::perform(memory, cpu, self.flags(), stage, coverage)
            }
        }
    }
}
