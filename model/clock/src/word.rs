//! Words of the machine's memory. At each operation, other CPUs may act, and a cache line is accessed.
//!
//! Every operation of a running CPU happens in the order of virtual time. Outside a run (while a kernel is built or
//! examined) and for the oracle, words are plain memory.

use crate::context;
use crate::lines::LineUse;
use quell::Word;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// A word of memory that CPUs of the machine share.
///
/// It has the size of a kernel's word. So structures keep their layout, and share lines as they would in a kernel. It's
/// an atomic of the host only to avoid `unsafe`.
pub struct ModelWord(AtomicU64);

impl ModelWord {
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

    #[inline]
    #[track_caller]
    fn update(&self, change: impl FnOnce(u64) -> u64) -> u64 {
        context::word_access(self.address(), LineUse::Modify, Ordering::SeqCst);
        let held = self.peek();
        self.poke(change(held));
        held
    }
}

// SAFETY: one CPU of the model runs at a time, so a plain cell is atomic and in order.
unsafe impl Word for ModelWord {
    #[inline]
    fn new(value: u64) -> Self {
        ModelWord(AtomicU64::new(value))
    }
    #[inline]
    fn fence(order: Ordering) {
        context::fence(order);
    }
    #[inline]
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        context::word_access(self.address(), LineUse::Load, order);
        self.peek()
    }
    #[inline]
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        context::word_access(self.address(), LineUse::Store, order);
        self.poke(value);
    }
    #[inline]
    #[track_caller]
    fn swap(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|_| value)
    }
    #[inline]
    #[track_caller]
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
    #[track_caller]
    fn fetch_add(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|held| held.wrapping_add(value))
    }
    #[inline]
    #[track_caller]
    fn fetch_or(&self, value: u64, _order: Ordering) -> u64 {
        self.update(|held| held | value)
    }
    #[inline]
    #[track_caller]
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

/// Words that share a cache line with no others.
#[repr(align(64))]
pub(crate) struct Line<const N: usize>(pub [ModelWord; N]);

impl<const N: usize> Line<N> {
    pub fn new() -> Self {
        Line(std::array::from_fn(|_| ModelWord::new(0)))
    }
}

impl Line<1> {
    pub fn word(&self) -> &ModelWord {
        &self.0[0]
    }
}
