//! Defines the interface of the machine whose memory is zeroed: [`PhysicalMemory`].

use crate::strategy::Strategy;
use quell::Extent;

/// Zeroes memory of a machine. The kernel implements it.
///
/// An implementation computes the address at which the kernel has mapped the extent, and calls
/// `quell_arch::zero::zero`, which has the instructions for every [`Strategy`].
///
/// That's enough if the [plans](crate::Plan) in use name only strategies that the kernel can execute. The processor
/// must have them (`quell_arch::zero::available`). A strategy that overwrites vector registers also needs a kernel that
/// may overwrite them there.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{PhysicalMemory, Strategy};
/// /// All memory, mapped from this address on.
/// struct DirectMap(*mut u8);
/// impl PhysicalMemory for DirectMap {
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
pub trait PhysicalMemory {
    /// Zeroes the whole extent with `strategy` before it returns.
    ///
    /// Afterwards the caller may publish the memory with a release store. Every CPU that reads that store with an
    /// acquire load must see the zeros, even if they were written around the caches. So after weakly ordered stores,
    /// for example non-temporal ones on x86, the implementation executes a fence, as `quell_arch::zero::zero` does.
    ///
    /// The implementation needn't limit the extent's length, because the caller does. The extent may be empty. If
    /// `strategy` is one that the implementation can't execute, it must use another.
    ///
    /// # Safety
    /// The extent is memory of this machine, and the caller owns it: no other code accesses it until the call returns.
    unsafe fn zero(&self, extent: Extent, strategy: Strategy);
}
