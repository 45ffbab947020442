//! Other walkers of a space's tables: devices behind an IOMMU that shares the tables, a hypervisor's second stage.
//!
//! The engine polls the machine for completion and never waits inside it. So it can serve requests for its CPU
//! meanwhile. A report under the lock of a table only starts the invalidation, and
//! [`FlushInFlight::is_done`](crate::FlushInFlight::is_done) checks once and returns. [`Hardware::start_secondary`]
//! states the rules, and [`Hardware::secondary_is_attached`] what the kernel does before a space ends.
//!
//! A *mark* covers all invalidations started before it was taken. So a batch needs only one mark, the last.

use crate::engine::Engine;
use crate::hardware::Hardware;
use crate::request::Request;
use crate::space::AddressSpace;
use crate::this_cpu::Cpu;

/// A mark that covers all earlier invalidations in devices. On machines without devices it has no meaning.
#[derive(Clone, Copy, Default)]
pub(crate) struct SecondaryMark(u64);

impl<H: Hardware> Cpu<'_, H> {
    /// Starts the invalidation of these requests in devices.
    #[inline]
    pub(crate) fn start_secondary<'s>(
        self,
        requests: impl Iterator<Item = (&'s AddressSpace<H>, &'s Request)>,
    ) -> SecondaryMark
    where
        H: 's,
    {
        if !H::HAS_SECONDARY {
            return SecondaryMark::default();
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
        SecondaryMark(self.hw.mark_secondary())
    }

    /// Waits until the invalidations that `mark` covers are complete. Serves the requests for this CPU meanwhile.
    #[inline]
    pub(crate) fn wait_for_secondary(self, mark: SecondaryMark) {
        while !self.secondary_is_done(mark) {
            self.wait_a_turn();
        }
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// Returns whether the invalidations that a mark covers are complete. Never waits.
    #[inline]
    pub(crate) fn secondary_is_done(&self, SecondaryMark(mark): SecondaryMark) -> bool {
        !H::HAS_SECONDARY || self.hw.secondary_is_done(mark)
    }
}
