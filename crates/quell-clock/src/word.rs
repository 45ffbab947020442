//! Words of shared memory: points where other CPUs may step in, and cache lines that cost.
//!
//! A [`ModelWord`] is eight bytes, so that structures have the layout that they have in a kernel
//! and lines are shared where they would be. It is an atomic of the host: not because several host
//! threads touch it, but because then nothing needs `unsafe` should one do so.
//!
//! Every operation of a running CPU happens at its place in the order of virtual time. Outside of a
//! run (while a kernel is built or examined) and in the oracle's eyes, words are plain memory.

use crate::context;
use crate::lines::Use;
use quell::Word;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of memory that CPUs of the machine share.
pub struct ModelWord(AtomicU64);

impl ModelWord {
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

    #[inline]
    fn update(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        context::word_access(self.address(), Use::Modify, Ordering::SeqCst);
        let held = self.peek();
        self.poke(change(held));
        held
    }
}

impl Word for ModelWord {
    #[inline]
    fn new(value: u64) -> Self {
        ModelWord(AtomicU64::new(value))
    }
    #[inline]
    fn fence(order: Ordering) {
        context::fence(order);
    }
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        context::word_access(self.address(), Use::Load, order);
        self.peek()
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        context::word_access(self.address(), Use::Store, order);
        self.poke(value);
    }
    #[inline]
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|_| value)
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        _success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let held = self.update(|held| if held == current { new } else { held });
        if held == current { Ok(held) } else { Err(held) }
    }
    #[inline]
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|held| held.wrapping_add(value))
    }
    #[inline]
    fn fetch_or(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|held| held | value)
    }
    #[inline]
    fn fetch_and(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|held| held & value)
    }
}

impl Drop for ModelWord {
    #[inline]
    fn drop(&mut self) {
        context::forget_word(self.address());
    }
}

impl fmt::Debug for ModelWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.peek())
    }
}
