//! Other walkers of a space's tables: devices behind an IOMMU that shares them, a hypervisor's second stage.
//!
//! Devices are asked to flush for every change that needs a flush, and frames come out of a batch only after they have
//! done so. The engine polls the machine for completion and never waits inside it. So it can serve the requests for its
//! CPU meanwhile, a report under the lock of a table only starts the invalidation, and a flush in flight checks once
//! and returns.
//!
//! A *mark* covers all invalidations started before it was taken. So one mark is enough for a batch: the last one.
//!
//! # What this does not guarantee
//!
//! The engine does not inform devices of the end of a space. The embedder detaches them before, and a debug build
//! checks this ([`Hardware::secondary_is_attached`]). If a flush is deferred until reuse, devices are asked at the
//! unmap, and only the CPUs' part is deferred.

use crate::engine::Engine;
use crate::hardware::Hardware;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::this_cpu::Cpu;

/// Covers all invalidations that devices were sent before it was taken. Without meaning on machines without devices.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark(u64);

impl<H: Hardware> Cpu<'_, H> {
    /// Starts the invalidation of these requests on devices.
    #[inline]
    pub(crate) fn start_secondary<'s>(
        self,
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

    /// Waits until they are complete, and serves the requests for this CPU meanwhile.
    #[inline]
    pub(crate) fn wait_for_secondary(self, mark: Mark) {
        while !self.secondary_is_done(mark) {
            self.wait_a_turn();
        }
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// Returns whether the invalidations that a mark covers are complete. Never waits.
    #[inline]
    pub(crate) fn secondary_is_done(&self, Mark(mark): Mark) -> bool {
        !H::HAS_SECONDARY || self.hw.secondary_is_done(mark)
    }
}
