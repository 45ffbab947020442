//! The machine's side of zeroing.

use crate::strategy::Strategy;
use quell::Extent;

/// A machine whose memory can be zeroed.
///
/// `quell_arch::zero::zero` has the instructions for every [`Strategy`]. So an implementation in a kernel only adds the
/// address at which it has mapped the extent, if the plans of its policies name only strategies that it can execute.
/// These are the strategies that the processor has (`quell_arch::zero::available`), and those with vector registers
/// only where the kernel may overwrite these.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{Clear, Strategy};
/// /// All memory, mapped from this address on.
/// struct DirectMap(*mut u8);
/// impl Clear for DirectMap {
///     unsafe fn zero(&self, extent: Extent, _strategy: Strategy) {
///         let start = self.0.wrapping_add(extent.first.address() as usize);
///         // A kernel passes the strategy to `quell_arch::zero::zero`.
///         // SAFETY: the caller owns the extent, which is mapped here.
///         unsafe { start.write_bytes(0, extent.bytes() as usize) };
///     }
/// }
/// let mut memory = [0xa5; 8192];
/// let machine = DirectMap(memory.as_mut_ptr());
/// // SAFETY: no other code uses the memory.
/// unsafe { machine.zero(Extent { first: Frame(1), frames: 1 }, Strategy::Stores) };
/// assert_eq!((memory[4095], memory[4096]), (0xa5, 0));
/// ```
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
