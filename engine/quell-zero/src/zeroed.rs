//! A type for memory that is known to be zero.
//!
//! [`Zeroed`] is a frame (or an owner of one) that was cleared and hasn't been written since.
//! [`Clearer::frame`](crate::Clearer::frame) or [`Pool::take`](crate::Pool::take) returns it, and the handler that maps
//! the frame consumes it. It gives no mutable access. A fault handler that takes `Zeroed<F>` can't map a dirty frame
//! (C8).

use quell::Extent;

/// An owner of physical memory that can be cleared.
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
