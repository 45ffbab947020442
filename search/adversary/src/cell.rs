//! Stores a word of memory: eight bytes, accessed as a whole.
//!
//! A single host thread runs all CPUs. The word is an atomic of the host only because that allows sharing it without
//! `unsafe`. The module [`word`](crate::word) defines the operations of CPUs on it.

use std::sync::atomic::{AtomicU64, Ordering};

/// The words of content that we model for each frame; the rest of a frame is zero.
pub(crate) const FRAME_WORDS: usize = 2;

/// A word of memory that the CPUs under the adversary share.
#[derive(Debug)]
#[repr(transparent)]
pub struct AdversaryWord(AtomicU64);

impl AdversaryWord {
    #[inline]
    pub(crate) fn holding(value: u64) -> Self {
        AdversaryWord(AtomicU64::new(value))
    }

    /// Returns the value in memory, without the stores that wait in buffers.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value in memory. No CPU notices the change.
    #[inline]
    pub fn poke(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
