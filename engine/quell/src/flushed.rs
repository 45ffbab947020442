//! The frames that a batch returns: flushed, or with a deferred flush.

use crate::addr::Frame;
use crate::frames::{FrameArray, FrameList};
use crate::ledger::Stamp;

/// Yields frames whose flush is over, so they may have new owners.
///
/// Only the engine makes this iterator, after the flush ([`Batch::finish`](crate::Batch::finish)). So it proves that no
/// CPU uses a translation to its frames any more (clause C1 of [the contract](crate#the-contract)). Frames that you
/// don't take out are dropped with the iterator.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{Frame, Page, PageRange, Purpose};
/// let mut free_list = vec![Frame(7)];
/// let mut batch = engine.batch(Purpose::Call);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// free_list.extend(batch.finish()); // they may be reused
/// assert_eq!(free_list, [Frame(7), Frame(42)]);
/// ```
#[must_use = "frames that are not taken out are dropped"]
pub struct FlushedFrames<'b, L: FrameList = FrameArray<Frame>> {
    frames: &'b mut L,
}

impl<'b, L: FrameList> FlushedFrames<'b, L> {
    #[inline]
    pub(crate) fn new(frames: &'b mut L) -> Self {
        FlushedFrames { frames }
    }
}

impl<L: FrameList> Iterator for FlushedFrames<'_, L> {
    type Item = L::Frame;
    #[inline]
    fn next(&mut self) -> Option<L::Frame> {
        self.frames.take()
    }
}

impl<L: FrameList> Drop for FlushedFrames<'_, L> {
    #[inline]
    fn drop(&mut self) {
        while self.frames.take().is_some() {}
    }
}

/// Yields frames whose flush is deferred until they're reused ([lazy unmap](crate::lazy)).
///
/// CPUs may still use translations to these frames. So record the stamp in the [`DeferredFlush`](crate::DeferredFlush)
/// of each frame. Frames that you don't take out are dropped with this iterator.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{DeferredFlush, Frame, Outcome, Page, PageRange, Purpose};
/// machine.access(Page(5));
/// let deferred_flush = DeferredFlush::new(); // of frame 42, in the frame table
/// deferred_flush.begin();
/// let mut batch = engine.batch(Purpose::Lazy);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// let Outcome::Deferred(frames) = batch.finish_deferred() else { panic!() };
/// deferred_flush.defer(frames.stamp());
/// assert!(frames.eq([Frame(42)]));
/// assert!(machine.caches(Page(5))); // not flushed yet
/// assert!(engine.flush_before_reuse(&deferred_flush).is_some());
/// assert!(!machine.caches(Page(5)));
/// ```
#[must_use = "frames that are not taken out are dropped, and may be reused before their deferred flush is made"]
pub struct DeferredFrames<'b, L: FrameList = FrameArray<Frame>> {
    frames: FlushedFrames<'b, L>,
    stamp: Stamp,
    /// Set for the batch while this value has its frames.
    borrowed: &'b mut bool,
}

impl<'b, L: FrameList> DeferredFrames<'b, L> {
    pub(crate) fn new(frames: &'b mut L, stamp: Stamp, borrowed: &'b mut bool) -> Self {
        DeferredFrames { frames: FlushedFrames::new(frames), stamp, borrowed }
    }

    /// Returns the stamp that names this deferred flush, for [`DeferredFlush::defer`](crate::DeferredFlush::defer).
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl<L: FrameList> Iterator for DeferredFrames<'_, L> {
    type Item = L::Frame;
    fn next(&mut self) -> Option<L::Frame> {
        self.frames.next()
    }
}

impl<L: FrameList> Drop for DeferredFrames<'_, L> {
    /// Drops the remaining frames, too.
    fn drop(&mut self) {
        *self.borrowed = false;
    }
}

/// Returned by [`Batch::finish_deferred`](crate::Batch::finish_deferred): the frames, with or without a flush.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{DeferredFlush, Frame, Outcome, Page, PageRange, Purpose};
/// let deferred_flush = DeferredFlush::new(); // in the frame table
/// deferred_flush.begin();
/// let mut batch = engine.batch(Purpose::Lazy);
/// batch.unmapped(&space, PageRange::base(Page(5), 1), Frame(42));
/// match batch.finish_deferred() {
///     Outcome::Flushed(frames) => {
///         deferred_flush.clear();
///         frames.for_each(drop); // free
///     }
///     Outcome::Deferred(frames) => deferred_flush.defer(frames.stamp()),
/// }
/// assert!(engine.flush_before_reuse(&deferred_flush).is_some());
/// ```
pub enum Outcome<'b, L: FrameList = FrameArray<Frame>> {
    /// The batch has flushed, and nothing is deferred.
    ///
    /// For example because lazy unmap is off or the ledger is full.
    /// [`Batch::finish_deferred`](crate::Batch::finish_deferred) lists all reasons.
    Flushed(FlushedFrames<'b, L>),
    /// The flush is deferred until the frames are reused.
    Deferred(DeferredFrames<'b, L>),
}
