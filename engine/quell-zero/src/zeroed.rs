//! A type for memory that is known to be zero.
//!
//! [`Zeroed`] is a frame (or an owner of one) that was cleared and hasn't been written since.
//! [`Clearer::frame`](crate::Clearer::frame) or [`Pool::take`](crate::Pool::take) returns it, and the handler that maps
//! the frame consumes it. It gives no mutable access. A fault handler that takes `Zeroed<F>` can't map a dirty frame
//! (C8).

use quell::Extent;

/// An owner of physical memory that can be cleared.
///
/// See the example of [`Pooled`](crate::Pooled).
///
/// # Safety
/// While a value exists, only its holder accesses the memory of its extent. The extent stays the same, and is memory of
/// the machine that clears it.
pub unsafe trait Clearable {
    /// Returns the memory.
    fn extent(&self) -> Extent;
}

/// Memory that contains only zeros, owned by an `F`.
///
/// The promise covers the time before this value was made. While the value exists, the owner of the translations must
/// ensure that no CPU writes the memory, as for any free frame.
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{ClearPolicy, Clearable, Clearer, Zeroed};
/// # use quell_zero::{Clear, Strategy};
/// # struct Machine;
/// # impl Clear for Machine { unsafe fn zero(&self, _: Extent, _: Strategy) {} }
/// # struct OwnedFrame(Frame);
/// # // SAFETY: the machine has no memory.
/// # unsafe impl Clearable for OwnedFrame {
/// #     fn extent(&self) -> Extent { Extent { first: self.0, frames: 1 } }
/// # }
/// # let (machine, policy) = (Machine, ClearPolicy::default());
/// /// Maps a frame for a program, which never gets a dirty one.
/// fn map(frame: Zeroed<OwnedFrame>) -> Frame {
///     frame.into_inner().0
/// }
/// let (zeroed, _stats) = Clearer::new(&machine, &policy).frame(OwnedFrame(Frame(42)), None, || ());
/// assert_eq!(map(zeroed), Frame(42));
/// ```
#[must_use = "dropping it drops the frame's owner"]
#[derive(PartialEq, Eq, Debug)]
pub struct Zeroed<F>(F);

impl<F> Zeroed<F> {
    /// Declares that the memory that `frame` owns contains only zeros.
    pub(crate) fn unchecked(frame: F) -> Self {
        Zeroed(frame)
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
