//! Words of shared memory at work: every operation on one is a point where anything may happen.
//!
//! Outside of a run, while a kernel is built or examined, words are plain memory.

use crate::cell::AdversaryWord;
use crate::context;
use crate::op::Op;
use quell::Word;
use std::panic::Location;
use std::sync::atomic::Ordering;

impl AdversaryWord {
    #[inline]
    #[track_caller]
    fn update(&self, order: Ordering, change: impl FnOnce(u64) -> u64) -> u64 {
        if let Some(context) = context::loud() {
            return context.modify(self, order, Location::caller(), change);
        }
        let held = self.peek();
        context::quiet_store(self, change(held));
        held
    }
}

// SAFETY: one CPU runs at a time, and an operation is one step. What a store may be late by is what its ordering
// allows.
unsafe impl Word for AdversaryWord {
    /// Four batches overflow the count, two are counted.
    const BATCH_BITS: u32 = 2;
    const RANGES: usize = 3;

    #[inline]
    fn new(value: u64) -> Self {
        AdversaryWord::holding(value)
    }
    #[inline]
    fn fence(order: Ordering) {
        match order {
            Ordering::SeqCst => {
                context::point(Op::Fence);
            }
            Ordering::Acquire => {}
            _ => context::order_stores(),
        }
    }
    #[inline]
    fn touch(place: usize, writes: bool) {
        context::point(Op::Touch { place, writes });
    }
    #[inline]
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        match context::loud() {
            Some(context) => context.load(self, order, Location::caller()),
            None => self.peek(),
        }
    }
    #[inline]
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        match context::loud() {
            Some(context) => context.store(self, value, order, Location::caller()),
            None => context::quiet_store(self, value),
        }
    }
    #[inline]
    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, |_| value)
    }
    #[inline]
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        _failure: Ordering,
    ) -> Result<u64, u64> {
        let held = self.update(success, |held| if held == current { new } else { held });
        if held == current { Ok(held) } else { Err(held) }
    }
    #[inline]
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, |held| held.wrapping_add(value))
    }
    #[inline]
    #[track_caller]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, |held| held | value)
    }
    #[inline]
    #[track_caller]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, |held| held & value)
    }
    #[inline]
    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, |held| held.max(value))
    }
}

impl Drop for AdversaryWord {
    #[inline]
    fn drop(&mut self) {
        context::forget(self);
    }
}
