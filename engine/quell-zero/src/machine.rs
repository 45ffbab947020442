//! The machine's side of zeroing.

use crate::strategy::Strategy;
use quell::Extent;

/// A machine whose memory can be zeroed.
///
/// `quell_arch::zero::zero` has the instructions for every [`Strategy`]. So an implementation in a kernel only adds the
/// address at which it has mapped the extent, if the plans of its policies name only strategies that it can execute.
/// These are the strategies that the processor has (`quell_arch::zero::available`), and those with vector registers
/// only where the kernel may overwrite these.
pub trait Clear {
    /// Zeroes the whole extent with `strategy` before it returns.
    ///
    /// If the caller then releases the memory, every CPU that acquires it sees the zeros, even if they were written
    /// around the caches. A strategy with weakly ordered stores ends with the fence that it needs.
    ///
    /// The caller limits the extent's length; an extent may be empty. A [`Plan`](crate::Plan) may name any strategy, so
    /// the implementation replaces a strategy that it can't execute.
    ///
    /// # Safety
    /// The caller owns the extent, which is memory of this machine: no other code accesses it until the call returns.
    unsafe fn zero(&self, extent: Extent, strategy: Strategy);
}
