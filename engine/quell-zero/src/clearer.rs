//! Clears memory: the pieces of an extent, one after another.

use crate::machine::Clear;
use crate::pieces::ClearPolicy;
use crate::strategy::Temperature;
use crate::zeroed::{Clearable, Zeroed};
use quell::{Extent, Frame};

/// Statistics of one [`Clearer::extent`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClearStats {
    /// Calls of [`Clear::zero`].
    pub pieces: u64,
    /// Bytes cleared through the caches, saturating.
    pub hot_bytes: u64,
    /// Bytes cleared around the caches, if the plan's strategies bypass them.
    pub bypassing_bytes: u64,
}

/// Zeroes a machine's memory according to a policy.
#[derive(Clone, Copy, Debug)]
pub struct Clearer<'a, M> {
    machine: &'a M,
    policy: &'a ClearPolicy,
}

impl<'a, M: Clear> Clearer<'a, M> {
    /// Creates a clearer for memory of `machine` with `policy`.
    pub const fn new(machine: &'a M, policy: &'a ClearPolicy) -> Self {
        Clearer { machine, policy }
    }

    /// Zeroes every byte of `extent` exactly once (C8).
    ///
    /// `fault` is the frame that is read next, if any: we clear it and its neighbours last and hot. `preempt` is called
    /// between two pieces, never before the first or after the last. It may reschedule, and the thread may continue on
    /// another CPU. If the caller then releases the memory, a CPU that acquires it sees the zeros.
    ///
    /// # Safety
    /// The caller owns the extent, which is memory of the machine: no other code accesses it until the call returns.
    pub unsafe fn extent(
        &self,
        extent: Extent,
        fault: Option<Frame>,
        mut preempt: impl FnMut(),
    ) -> ClearStats {
        let mut done = ClearStats::default();
        for piece in self.policy.pieces(extent, fault) {
            if done.pieces > 0 {
                // A cooperative kernel must offer a preemption point. [mutant ZeroHoldsCpu]
                preempt();
            }
            // The new owner reads every byte. [mutants ZeroSkipsTail, ZeroSkipsFaultingPage]
            // SAFETY: the piece is a part of the extent, which the caller owns.
            unsafe { self.machine.zero(piece.extent, piece.strategy) };
            done.pieces += 1;
            let bytes = match piece.temperature {
                Temperature::Hot => &mut done.hot_bytes,
                Temperature::Bypassing => &mut done.bypassing_bytes,
            };
            *bytes = bytes.saturating_add(piece.extent.bytes());
        }
        done
    }

    /// Zeroes the memory that `frame` owns, like [`Clearer::extent`], and returns the proof as a type.
    pub fn frame<F: Clearable>(
        &self,
        frame: F,
        fault: Option<Frame>,
        preempt: impl FnMut(),
    ) -> (Zeroed<F>, ClearStats) {
        // SAFETY: the frame owns the memory, and we own the frame.
        let done = unsafe { self.extent(frame.extent(), fault, preempt) };
        (Zeroed::unchecked(frame), done)
    }
}
