//! Frames that come out of a batch: their flush is over, or it is deferred.
//!
//! [`Flushed`] is the proof that no CPU uses a translation to these frames any more (C1): only the engine makes it,
//! after the flush. [`Deferred`] proves nothing: the embedder puts each of its frames behind a
//! [`DeferredFlush`](crate::Residue).

use crate::frames::{FrameList, InPlace};
use crate::ledger::Stamp;
use core::marker::PhantomData;

/// Frames whose flush is over: they may be reused. They come out of the batch's own list.
#[must_use = "frames that are not taken out are dropped"]
pub struct Flushed<'b, F, L: FrameList<F> = InPlace<F>> {
    frames: &'b mut L,
    frame: PhantomData<F>,
}

impl<'b, F, L: FrameList<F>> Flushed<'b, F, L> {
    #[inline]
    pub(crate) fn new(frames: &'b mut L) -> Self {
        Flushed {
            frames,
            frame: PhantomData,
        }
    }
}

impl<F, L: FrameList<F>> Iterator for Flushed<'_, F, L> {
    type Item = F;
    #[inline]
    fn next(&mut self) -> Option<F> {
        self.frames.take()
    }
}

impl<F, L: FrameList<F>> Drop for Flushed<'_, F, L> {
    #[inline]
    fn drop(&mut self) {
        while self.frames.take().is_some() {}
    }
}

/// Frames whose flush is deferred until reuse: each goes behind a [`DeferredFlush`](crate::Residue).
#[must_use = "frames that are not taken out are dropped, and a frame that is dropped may be reused before its deferred flush is made"]
pub struct Deferred<'b, F, L: FrameList<F> = InPlace<F>> {
    frames: Flushed<'b, F, L>,
    stamp: Stamp,
    /// Tells the batch that this value has its frames.
    borrowed: &'b mut bool,
}

impl<'b, F, L: FrameList<F>> Deferred<'b, F, L> {
    pub(crate) fn new(frames: &'b mut L, stamp: Stamp, borrowed: &'b mut bool) -> Self {
        Deferred {
            frames: Flushed::new(frames),
            stamp,
            borrowed,
        }
    }

    /// The tick of the flush clock at which the flush began to be deferred.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl<F, L: FrameList<F>> Iterator for Deferred<'_, F, L> {
    type Item = F;
    fn next(&mut self) -> Option<F> {
        self.frames.next()
    }
}

impl<F, L: FrameList<F>> Drop for Deferred<'_, F, L> {
    /// The frames go with it.
    fn drop(&mut self) {
        *self.borrowed = false;
    }
}

/// How a batch that wanted to defer its flush ended.
pub enum Outcome<'b, F, L: FrameList<F> = InPlace<F>> {
    /// The batch was flushed and no flush is deferred: S3 is off, the ledger is full, a page-table page was unlinked,
    /// the batch was told of mappings of the kernel and of a user space, or of more spaces than it has places for, or
    /// more batches of a space are outstanding than are counted.
    Flushed(Flushed<'b, F, L>),
    /// The flush is deferred.
    Deferred(Deferred<'b, F, L>),
}
