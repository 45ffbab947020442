//! Clears memory: the pieces of an extent, one after the other.

use crate::machine::Clear;
use crate::pieces::ClearPolicy;
use crate::rules::ZeroRules;
use crate::strategy::Temperature;
use crate::zeroed::{Clearable, Zeroed};
use quell::{AllRules, Extent, Frame, Rules};

/// What [`Clearer::extent`] did, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cleared {
    /// Calls of [`Clear::zero`].
    pub pieces: u64,
    /// Bytes cleared through the caches; [`u64::MAX`] if they are more.
    pub hot_bytes: u64,
    /// Bytes cleared around the caches, as far as the plan's strategies do so.
    pub bypassing_bytes: u64,
}

/// Clears memory of a machine by a policy.
#[derive(Clone, Copy, Debug)]
pub struct Clearer<'a, M, R = AllRules> {
    machine: &'a M,
    policy: &'a ClearPolicy,
    rules: R,
}

impl<'a, M: Clear> Clearer<'a, M> {
    /// Clears memory of `machine` by `policy`.
    pub const fn new(machine: &'a M, policy: &'a ClearPolicy) -> Self {
        Clearer {
            machine,
            policy,
            rules: AllRules,
        }
    }

    /// The same with some of the crate's [rules](crate::rules) not kept, for machines under test.
    #[doc(hidden)]
    pub fn with_rules<R: Rules>(self, rules: R) -> Clearer<'a, M, R> {
        Clearer {
            machine: self.machine,
            policy: self.policy,
            rules,
        }
    }
}

impl<M: Clear, R: Rules> Clearer<'_, M, R> {
    /// Zeroes every byte of `extent` exactly once (C8).
    ///
    /// `fault` is the frame that is read next, if any; it and its neighbours are cleared last and hot.
    /// `preempt` is called between two pieces, never before the first or after the last; it may reschedule, and
    /// the thread may continue on another CPU. The zeros are visible to another CPU that acquires what the caller releases
    /// afterwards.
    ///
    /// # Safety
    /// The extent is memory of the machine and the caller's own: nobody else accesses it until the call returns.
    pub unsafe fn extent(
        &self,
        extent: Extent,
        fault: Option<Frame>,
        mut preempt: impl FnMut(),
    ) -> Cleared {
        let policy = ClearPolicy {
            cap_bytes: self.rules.cap(self.policy.cap_bytes),
            ..*self.policy
        };
        let end = extent.first.plus(extent.frames);
        let mut done = Cleared::default();
        for piece in policy.pieces_by(&self.rules, extent, fault) {
            if done.pieces > 0 {
                self.rules.between_pieces(&mut preempt);
            }
            let last = piece.extent.first.plus(piece.extent.frames) == end;
            let run = self
                .rules
                .run(piece.extent, last, piece.temperature == Temperature::Hot);
            // SAFETY: the run is a part of the extent, which is the caller's own.
            unsafe { self.machine.zero(run, piece.strategy) };
            done.pieces += 1;
            let bytes = match piece.temperature {
                Temperature::Hot => &mut done.hot_bytes,
                Temperature::Bypassing => &mut done.bypassing_bytes,
            };
            *bytes = bytes.saturating_add(piece.extent.bytes());
        }
        done
    }

    /// Clears what `frame` owns, as [`Clearer::extent`] does, and says so by type.
    pub fn frame<F: Clearable>(
        &self,
        frame: F,
        fault: Option<Frame>,
        preempt: impl FnMut(),
    ) -> (Zeroed<F>, Cleared) {
        // SAFETY: the frame owns the memory, and is ours.
        let done = unsafe { self.extent(frame.extent(), fault, preempt) };
        (Zeroed::unchecked(frame), done)
    }

    /// What may be forgotten on a machine under test.
    pub(crate) fn rules(&self) -> &R {
        &self.rules
    }
}
