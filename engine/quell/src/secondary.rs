//! Other walkers of a space's tables: devices behind an IOMMU that shares them, a hypervisor's second stage.
//!
//! They hear of every change that needs a flush, and frames come out of a batch only after they have forgotten them,
//! too. An invalidation that they were told is complete when the machine says so; the engine asks, and does not wait:
//! the engine goes on serving the requests for its CPU meanwhile, a report under the lock of a table only starts, and a
//! flush in flight looks once and says no.
//!
//! A *mark* stands for all that was started before it was taken. So one mark is enough for a batch: the last one.
//!
//! # What this does not guarantee
//!
//! The engine tells devices nothing of the end of a space: the embedder detaches them before, and a debug build asks
//! whether it has ([`Hardware::secondary_is_attached`]). Where a flush is deferred until reuse, devices are told at the
//! unmap, and the deferred flush is one of CPUs alone.

use crate::cpu_set::CpuId;
use crate::engine::Engine;
use crate::hardware::Hardware;
use crate::request::Request;
use crate::space::AddressSpace;

/// Stands for all that others were told before it was taken. On machines without others it says nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark(u64);

impl<H: Hardware> Engine<'_, H> {
    /// Tells other walkers what changed.
    #[inline]
    pub(crate) fn start_secondary<'s>(
        &self,
        requests: impl Iterator<Item = (&'s AddressSpace<H>, &'s Request)>,
    ) -> Mark
    where
        H: 's,
    {
        if !H::HAS_SECONDARY {
            return Mark::default();
        }
        for (space, request) in requests {
            let root = space.root();
            match request {
                Request::Empty => {}
                Request::Full(scope) => self.hw.start_secondary(root, None, *scope),
                Request::Ranges(ranges, scope) => ranges
                    .iter()
                    .for_each(|range| self.hw.start_secondary(root, Some(range), *scope)),
            }
        }
        Mark(self.hw.mark_secondary())
    }

    /// Whether they have forgotten all that a mark stands for. Never waits.
    #[inline]
    pub(crate) fn secondary_is_done(&self, Mark(mark): Mark) -> bool {
        !H::HAS_SECONDARY || self.hw.secondary_is_done(mark)
    }

    /// Waits until they have, and serves the requests for this CPU meanwhile.
    #[inline]
    pub(crate) fn wait_for_secondary(&self, me: CpuId, mark: Mark) {
        while !self.secondary_is_done(mark) {
            self.wait_a_turn(me, self.cpu(me));
        }
    }
}
