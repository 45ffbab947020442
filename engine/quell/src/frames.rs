//! The lists in which a batch keeps frames until their flush.
//!
//! Only the kernel knows how many frames a batch should hold, and where, so it chooses the [`FrameList`].

use crate::stack::InlineQueue;

/// The default capacity of a batch, in frames.
pub const CAPACITY: usize = 64;

/// Holds frames that wait for the flush of a [`Batch`](crate::Batch).
///
/// A full list must be flushed, which interrupts other CPUs. For example, unmapping 512 pages through a list of 64
/// frames interrupts eight times as often as a single flush. [`FrameArray`] has a fixed capacity. A kernel that can
/// link frames to one another, for example through its `struct page`, implements this trait for such a chain. A chain
/// is never full.
///
/// The batch owns the list, and takes a frame out only after the flush. An implementation must keep each frame until
/// then, and let no other code use it meanwhile. Otherwise [`FlushedFrames`](crate::FlushedFrames) proves nothing.
/// Frames may come out in any order.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Batch, Frame, FrameList, Purpose};
/// /// Frames linked through a growing list: never full.
/// #[derive(Default)]
/// struct FrameVec(Vec<Frame>);
/// impl FrameList for FrameVec {
///     type Frame = Frame;
///     fn push(&mut self, frame: Frame) {
///         self.0.push(frame);
///     }
///     fn take(&mut self) -> Option<Frame> {
///         self.0.pop()
///     }
///     fn is_full(&self) -> bool {
///         false
///     }
///     fn is_empty(&self) -> bool {
///         self.0.is_empty()
///     }
/// }
/// let mut batch = engine.batch_into(Purpose::Call, FrameVec::default());
/// batch.changed(&space, quell::PageRange::base(quell::Page(5), 100), quell::Scope::Leaf);
/// (0..100).for_each(|frame| batch.hold(Frame(frame)));
/// assert_eq!(batch.finish().count(), 100);
/// ```
pub trait FrameList {
    /// The kernel's type that owns a frame.
    type Frame;

    /// Returns whether the list has no room for another frame. Always `false` for an unbounded list.
    fn is_full(&self) -> bool;

    /// Returns whether the list holds no frame.
    fn is_empty(&self) -> bool;

    /// Adds a frame. The batch calls this only if the list isn't full.
    fn push(&mut self, frame: Self::Frame);

    /// Removes and returns a frame, or `None` if the list is empty.
    fn take(&mut self) -> Option<Self::Frame>;
}

/// Holds up to `N` frames in the batch itself, usually on the caller's stack.
///
/// Frames come out in the order in which they were added. Unused room stays uninitialised.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, FrameArray, Page, PageRange, Purpose};
/// let mut batch = engine.batch_into(Purpose::Call, FrameArray::<Frame, 2>::new());
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// batch.unmapped(&space, PageRange::base(Page(6), 1), Frame(43));
/// assert!(batch.is_full()); // it must be finished before the next frame
/// assert!(batch.finish().eq([Frame(42), Frame(43)]));
/// assert!(batch.is_empty());
/// ```
pub struct FrameArray<F, const N: usize = CAPACITY>(InlineQueue<F, N>);

impl<F, const N: usize> FrameArray<F, N> {
    /// Makes an empty list.
    #[inline]
    pub fn new() -> Self {
        FrameArray(InlineQueue::new())
    }
}

impl<F, const N: usize> Default for FrameArray<F, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F, const N: usize> FrameList for FrameArray<F, N> {
    type Frame = F;

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
