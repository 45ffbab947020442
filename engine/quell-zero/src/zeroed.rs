//! Proves, by a type, that memory contains only zeros.
//!
//! A [`ZeroedFrame`] is a frame that was cleared and hasn't been written since.
//! [`Clearer::frame`](crate::Clearer::frame) or [`Pool::take`](crate::Pool::take) returns it, and the page-fault
//! handler that maps the frame consumes it. A `ZeroedFrame` gives no mutable access. A handler that takes a
//! `ZeroedFrame<F>` can't map a dirty frame.

use quell::Extent;

/// Owns physical memory that can be zeroed. The kernel implements it for its own type.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::OwnedMemory;
/// /// A frame that the kernel's allocator gave out.
/// struct OwnedFrame(u64);
/// // SAFETY: in a kernel, the allocator gives each frame to one owner.
/// unsafe impl OwnedMemory for OwnedFrame {
///     fn extent(&self) -> Extent {
///         Extent { first: Frame(self.0), frames: 1 }
///     }
/// }
/// assert_eq!(OwnedFrame(42).extent().bytes(), 4096);
/// ```
///
/// # Safety
/// While a value exists, only its holder accesses the memory of its extent. [`OwnedMemory::extent`] always returns the
/// same extent, and the [`PhysicalMemory`](crate::PhysicalMemory) that zeroes the extent can write to it.
pub unsafe trait OwnedMemory {
    /// Returns the memory that the value owns.
    fn extent(&self) -> Extent;
}

/// Proves that the memory owned by an `F` contains only zeros.
///
/// Only [`Clearer::frame`](crate::Clearer::frame) and [`Pool::take`](crate::Pool::take) make one. The memory was zeroed
/// before that. While the value exists, the kernel must ensure that no CPU has a translation through which it could
/// write to the memory, as for any free frame.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Clearer, OwnedMemory, ZeroedFrame};
/// # use quell_zero::{PhysicalMemory, Strategy};
/// # struct Machine;
/// # impl PhysicalMemory for Machine { unsafe fn zero(&self, _: Extent, _: Strategy) {} }
/// # struct OwnedFrame(Frame);
/// # // SAFETY: the machine has no memory.
/// # unsafe impl OwnedMemory for OwnedFrame {
/// #     fn extent(&self) -> Extent { Extent { first: self.0, frames: 1 } }
/// # }
/// # let (machine, policy) = (Machine, ClearPolicy::default());
/// /// Maps a frame for a program, which never gets a dirty one.
/// fn map(frame: ZeroedFrame<OwnedFrame>) -> Frame {
///     frame.into_inner().0
/// }
/// let (zeroed, _stats) = Clearer::new(&machine, &policy).frame(OwnedFrame(Frame(42)), None, || ());
/// assert_eq!(map(zeroed), Frame(42));
/// ```
#[must_use = "dropping it drops the frame's owner"]
#[derive(PartialEq, Eq, Debug)]
pub struct ZeroedFrame<F>(F);

impl<F> ZeroedFrame<F> {
    /// Declares that the memory that `frame` owns contains only zeros.
    pub(crate) fn unchecked(frame: F) -> Self {
        ZeroedFrame(frame)
    }
    /// Returns the owner. The proof ends here: the memory may now be mapped and written.
    pub fn into_inner(self) -> F {
        self.0
    }
    /// Borrows the owner.
    pub fn get(&self) -> &F {
        &self.0
    }
}
