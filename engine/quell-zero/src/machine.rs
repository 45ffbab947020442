//! The interface of a machine to zeroing.

use crate::strategy::Strategy;
use quell::Extent;

/// A machine whose memory can be zeroed.
///
/// `quell_arch::zero::zero` has the instructions for every [`Strategy`], so an implementation in a kernel adds the
/// address at which it has mapped the extent, and nothing else, if the plans of its policies name only strategies that
/// it can execute: those that the processor has (`quell_arch::zero::available`), and with vector registers only where
/// these are the kernel's to overwrite.
pub trait Clear {
    /// Zeroes the whole extent with `strategy` before it returns.
    ///
    /// The zeros are visible to every CPU that acquires what the caller releases afterwards, even if they were written
    /// around the caches. A strategy with weakly ordered stores ends with the fence that it needs.
    ///
    /// The caller keeps the caps on the extent's length; an extent may be empty. A strategy that the implementation
    /// cannot execute it replaces by another: a [`Plan`](crate::Plan) may name any.
    ///
    /// # Safety
    /// The extent is memory of this machine and the caller's own: nobody else accesses it until the call returns.
    unsafe fn zero(&self, extent: Extent, strategy: Strategy);
}
