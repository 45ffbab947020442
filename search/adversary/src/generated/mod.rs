//! Runs programs that are data, on two kernels that keep every rule of an embedder.
//!
//! The program of a scenario is Rust code. Here a program is a list of operations for each CPU ([`program`]), which can
//! be drawn, changed, written and read. One kernel executes such lists over the engine alone ([`kernel`]), the other
//! over the memory manager ([`calls`]).

mod calls;
mod kernel;
pub mod program;

pub use program::Program;

use crate::coverage::Coverage;
use crate::stage::Stage;
use program::CallOp;
use quell_vm::contract::timeline::Line;

/// The settings of a program's run, and the run itself, by the kernel of its grammar.
impl Program {
    pub(crate) fn frames(&self) -> usize {
        match self {
            Program::Engine { shape, cpu } => kernel::Layout::of(shape, cpu).frames(),
            Program::Calls { memory, .. } => calls::frames(memory),
        }
    }

    pub(crate) fn table_frames(&self) -> usize {
        match self {
            Program::Engine { shape, cpu } => kernel::Layout::of(shape, cpu).tables(),
            Program::Calls { memory, .. } => calls::frames(memory),
        }
    }

    pub(crate) fn levels(&self) -> u8 {
        match self {
            Program::Engine { .. } => 3,
            Program::Calls { .. } => 4,
        }
    }

    /// Returns the most NMIs, preemptions and spurious interrupts of a run.
    pub(crate) fn uninvited(&self) -> [u8; 3] {
        match self {
            Program::Engine { shape, .. } => [shape.nmis, shape.preemptions, shape.spurious],
            Program::Calls { memory, .. } => [memory.nmis, 0, 0],
        }
    }

    /// Returns a number of steps that a run never reaches.
    pub(crate) fn steps(&self) -> u32 {
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

    /// Returns a number of fair decisions that one operation never reaches. A call may process each frame of memory.
    pub(crate) fn patience(&self) -> u32 {
        match self {
            Program::Engine { .. } => 32_000,
            Program::Calls { memory, .. } => 32_000 + 400 * (memory.fast + memory.slow) as u32,
        }
    }

    pub(crate) fn perform(&self, stage: Stage<'_>, coverage: &mut Coverage) -> Vec<Line> {
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
