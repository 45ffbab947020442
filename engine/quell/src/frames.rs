//! Where a batch keeps frames until their flush.
//!
//! A batch that is full must be finished, which costs a shootdown: an unmap of 512 pages through a batch of 64
//! interrupts eight times as often as one flush would. How many frames a batch should hold, and where, only the
//! kernel knows, so it chooses the list. [`InPlace`] holds a bounded number in the batch itself, on the
//! stack of the caller; a kernel that can link frames to one another, through its array of page descriptors
//! for instance, implements [`FrameList`] for such a chain, which has room for any number, and the whole call
//! ends with one flush.

use crate::stack::Stack;

/// How many frames a batch holds unless the embedder says otherwise.
pub const CAPACITY: usize = 64;

/// A list of frames that wait for a flush.
///
/// The batch owns the list, and takes a frame out only after the flush. An implementation keeps each frame from
/// the moment it is pushed until it is taken, in any order, and shows it to no other code: the proof that
/// [`Flushed`](crate::Flushed) stands for is worth what the list is worth.
pub trait FrameList<F> {
    /// Whether there is no room for another frame. A list without a bound always has room.
    fn is_full(&self) -> bool;

    /// Whether it holds nothing.
    fn is_empty(&self) -> bool;

    /// Takes charge of a frame. The batch calls this only if the list is not full.
    fn push(&mut self, frame: F);

    /// Gives a frame back, as long as there are some.
    fn take(&mut self) -> Option<F>;
}

/// Up to `N` frames in the batch's own memory, which is not initialised; they come out in the order in which they
/// were put in.
pub struct InPlace<F, const N: usize = CAPACITY>(Stack<F, N>);

impl<F, const N: usize> InPlace<F, N> {
    /// An empty list.
    #[inline]
    pub fn new() -> Self {
        InPlace(Stack::new())
    }
}

impl<F, const N: usize> Default for InPlace<F, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F, const N: usize> FrameList<F> for InPlace<F, N> {
    #[inline]
    fn is_full(&self) -> bool {
        self.0.is_full()
    }
    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    #[inline]
    fn push(&mut self, frame: F) {
        self.0.push(frame);
    }
    #[inline]
    fn take(&mut self) -> Option<F> {
        self.0.take_first()
    }
}
