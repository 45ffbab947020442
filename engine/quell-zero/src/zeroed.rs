//! The type that says that memory is zero.
//!
//! [`Zeroed`] is a frame (or whatever owns one) that was cleared and has not been written since: it
//! comes out of [`Clearer::frame`](crate::Clearer::frame) or of a [`Pool`](crate::Pool), gives no mutable
//! access, and is consumed by the handler that maps it. A fault handler that takes `Zeroed<F>` cannot map a dirty
//! frame (C8).

use quell::Extent;

/// Something that owns physical memory which can be cleared.
///
/// # Safety
/// As long as a value exists, nobody accesses the memory of its extent but whoever has the value; the extent stays the
/// same, and is memory of the machine by which the value is cleared.
pub unsafe trait Clearable {
    /// Returns the memory.
    fn extent(&self) -> Extent;
}

/// Memory that contains only zeros, owned by an `F`.
///
/// The promise is about what happened before this value was made; that no CPU writes the memory while the value
/// exists is up to the owner of the translations, as for any free frame.
#[must_use = "dropping it drops the frame's owner"]
#[derive(PartialEq, Eq, Debug)]
pub struct Zeroed<F>(F);

impl<F> Zeroed<F> {
    /// Says that what `frame` owns contains only zeros.
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
