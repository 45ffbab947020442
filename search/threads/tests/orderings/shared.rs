//! Replaces `quell-vm`'s `shared.rs` by loom's atomics.

use crate::word::LoomWord;
use quell::Word;
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// A shared number.
pub(crate) struct SharedNumber<W> {
    value: LoomWord,
    words: PhantomData<fn() -> W>,
}

impl<W: Word> SharedNumber<W> {
    pub(crate) fn new(value: u64) -> Self {
        SharedNumber { value: LoomWord::new(value), words: PhantomData }
    }

    #[track_caller]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.value.load(order)
    }

    #[track_caller]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.value.store(value, order);
    }

    #[track_caller]
    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.value.fetch_max(value, order)
    }

    #[track_caller]
    pub(crate) fn fence(order: Ordering) {
        LoomWord::fence(order);
    }
}
