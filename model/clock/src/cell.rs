//! Stores a word of the machine's memory: eight bytes without cost or order.
//!
//! A [`ModelWord`] has the size of a kernel's word. So structures keep their layout, and share lines as they would in a
//! kernel. It's an atomic of the host only to avoid `unsafe`. The module `word` defines the time and cost of a CPU's
//! operation on it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of memory that CPUs of the machine share.
pub struct ModelWord(AtomicU64);

impl ModelWord {
    #[inline]
    pub(crate) fn holding(value: u64) -> Self {
        ModelWord(AtomicU64::new(value))
    }

    /// Returns the value, without cost and without letting another CPU run.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value, without cost and without letting another CPU run.
    #[inline]
    pub(crate) fn poke(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn address(&self) -> usize {
        self as *const Self as usize
    }
}

impl fmt::Debug for ModelWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.peek())
    }
}
