//! Performs operations on shared words. At each of them, other CPUs may act, and a cache line is accessed.
//!
//! Every operation of a running CPU happens in the order of virtual time. Outside a run (while a kernel is built or
//! examined) and for the oracle, words are plain memory.

use crate::cell::ModelWord;
use crate::context;
use crate::lines::LineUse;
use quell::Word;
use std::sync::atomic::Ordering;

impl ModelWord {
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
        ModelWord::holding(value)
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
