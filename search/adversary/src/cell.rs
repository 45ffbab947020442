//! A word of memory as memory: eight bytes, between which no other CPU steps.
//!
//! It is an atomic of the host, although one host thread runs all CPUs: nothing here needs `unsafe` to
//! share it. `word` says what the operations of CPUs on it do.

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of content that a frame has here; the rest of a frame is zero.
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

    /// What memory holds, whatever lies in store buffers.
    #[inline]
    pub fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets what memory holds, without any CPU noticing.
    #[inline]
    pub fn poke(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}
