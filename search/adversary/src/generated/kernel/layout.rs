//! The layout of the kernel's tables and frames in physical memory: tables first, then data.

use crate::generated::program::{CpuProgram, EngineOp, Shape, WINDOW};
use quell::Frame;

/// The number of data frames of one page.
pub(super) const SINGLES: u64 = 24;
/// The number of frame ranges for a large page, or for the used part of a huge one.
pub(super) const BLOCKS: u64 = 2;

/// The layout of physical memory: tables first, then data.
#[derive(Clone, Copy, Debug)]
pub(in crate::generated) struct Layout {
    spaces: u64,
    pub(super) blocks: u64,
    /// Whether the kernel has its own half.
    pub(super) own: bool,
    /// Whether CPUs go offline during the program.
    pub(super) leaves: bool,
}

impl Layout {
    /// Creates the layout for a program of this shape.
    pub(in crate::generated) fn of(shape: &Shape, cpu: &[CpuProgram<EngineOp>]) -> Self {
        let large = |op: &EngineOp| {
            matches!(
                op,
                EngineOp::MapLarge { .. } | EngineOp::MapHuge { .. } | EngineOp::Collapse { .. }
            )
        };
        let ops = || cpu.iter().flat_map(CpuProgram::all);
        Layout {
            spaces: shape.spaces.into(),
            blocks: if ops().any(large) { BLOCKS } else { 0 },
            own: ops().any(|op| op.is_of_own_half()),
            leaves: ops().any(|op| matches!(op, EngineOp::Offline)),
        }
    }

    pub(super) fn root(self, slot: usize) -> Frame {
        Frame(1 + slot as u64)
    }

    pub(super) fn middle(self, slot: usize) -> Frame {
        Frame(1 + self.spaces + slot as u64)
    }

    pub(super) fn first_leaf(self) -> u64 {
        1 + 2 * self.spaces
    }

    /// Returns the number of frames that may be leaf tables.
    pub(super) fn leaves(self) -> u64 {
        2 * self.spaces + 4
    }

    /// Returns the tables of the kernel's own half below its root: the middle table and the first leaf table.
    pub(super) fn own_tables(self) -> [Frame; 2] {
        let first = self.first_leaf() + self.leaves();
        [Frame(first), Frame(first + 1)]
    }

    /// Returns the number of frames that may be tables.
    pub(in crate::generated) fn tables(self) -> usize {
        let own = if self.own { 2 } else { 0 };
        (self.first_leaf() + self.leaves() + own) as usize
    }

    pub(super) fn single(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + index)
    }

    pub(super) fn block(self, index: u64) -> Frame {
        Frame(self.tables() as u64 + SINGLES + index * WINDOW)
    }

    /// Returns the number of frames.
    pub(in crate::generated) fn frames(self) -> usize {
        self.block(self.blocks).0 as usize
    }
}
