//! A word of the machine's memory, as memory: eight bytes without cost or order.
//!
//! A [`ModelWord`] is eight bytes, so that structures have the layout that they have in a kernel
//! and lines are shared where they would be. It is an atomic of the host: not because several host
//! threads touch it, but because then nothing needs `unsafe` should one do so. `word` says what an operation of a
//! CPU on it costs, and when it happens.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of memory that CPUs of the machine share.
pub struct ModelWord(AtomicU64);

impl ModelWord {
    #[inline]
    pub(crate) fn holding(value: u64) -> Self {
        ModelWord(AtomicU64::new(value))
    }

    /// The value, without cost and without giving another CPU the chance to step in.
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the value in the same way.
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
