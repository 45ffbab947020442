//! Stores words of memory, and performs the operations of CPUs on them. Before each operation, anything may happen.
//!
//! Outside a run, while a kernel is built or examined, words are plain memory.

use crate::action::Op;
use crate::context;
use quell::Word;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of content that we model for each frame; the rest of a frame is zero.
pub(crate) const FRAME_WORDS: usize = 2;

/// A word of memory that the CPUs under the adversary share: eight bytes, accessed as a whole.
///
/// A single host thread runs all CPUs. The word is an atomic of the host only because that allows sharing it without
/// `unsafe`.
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

    #[inline]
    #[track_caller]
    fn update(
        &self,
        order: Ordering,
        fails: Option<(u64, Ordering)>,
        change: impl FnOnce(u64) -> u64,
    ) -> u64 {
        if let Some(context) = context::loud() {
            return context.modify(self, order, fails, Location::caller(), change);
        }
        let held = self.peek();
        context::quiet_store(self, change(held));
        held
    }
}

// SAFETY: one CPU runs at a time, and an operation is one step. The machine delays stores and satisfies loads early
// only as far as their orderings allow.
unsafe impl Word for AdversaryWord {
    /// With two bits, more than two outstanding batches exceed the limit and four overflow the count, so that runs
    /// reach both cases.
    const BATCH_BITS: u32 = 2;
    /// Four CPUs are two groups.
    const GROUP: usize = 2;

    #[inline]
    fn new(value: u64) -> Self {
        AdversaryWord::holding(value)
    }
    #[inline]
    #[track_caller]
    fn fence(order: Ordering) {
        if let Some(context) = context::loud() {
            context.fence(order, Location::caller());
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
        self.update(order, None, |_| value)
    }
    #[inline]
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let change = |held| if held == current { new } else { held };
        let held = self.update(success, Some((current, failure)), change);
        if held == current { Ok(held) } else { Err(held) }
    }
    #[inline]
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, None, |held| held.wrapping_add(value))
    }
    #[inline]
    #[track_caller]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, None, |held| held | value)
    }
    #[inline]
    #[track_caller]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, None, |held| held & value)
    }
    #[inline]
    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.update(order, None, |held| held.max(value))
    }
}

impl Drop for AdversaryWord {
    #[inline]
    fn drop(&mut self) {
        context::forget(self);
    }
}
