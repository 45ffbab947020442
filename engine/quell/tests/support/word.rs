//! A word of the host, with hooks around its accesses.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use quell::Word;

/// Hooks around the accesses to a word.
pub trait AccessHooks: 'static {
    /// [`Word::BATCH_BITS`] of the word.
    const BATCH_BITS: u32 = <AtomicU64 as Word>::BATCH_BITS;

    /// Runs before each access.
    fn before() {}

    /// Runs before each operation that drains the CPU's store buffer: locked operations and full barriers.
    fn drain() {}

    /// Runs after each addition.
    fn after_addition() {}
}

/// A word with hooks around its accesses.
pub struct HookedWord<A>(AtomicU64, PhantomData<fn() -> A>);

// SAFETY: each operation is that of the inner word.
unsafe impl<A: AccessHooks> Word for HookedWord<A> {
    const BATCH_BITS: u32 = A::BATCH_BITS;

    fn new(value: u64) -> Self {
        HookedWord(AtomicU64::new(value), PhantomData)
    }
    fn fence(order: Ordering) {
        if order == Ordering::SeqCst {
            A::drain();
        }
        std::sync::atomic::fence(order);
    }
    fn load(&self, order: Ordering) -> u64 {
        A::before();
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        A::before();
        self.0.store(value, order);
        if order == Ordering::SeqCst {
            A::drain();
        }
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        A::before();
        A::drain();
        self.0.swap(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        A::before();
        A::drain();
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        A::before();
        A::drain();
        let held = self.0.fetch_add(value, order);
        A::after_addition();
        held
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        A::before();
        A::drain();
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        A::before();
        A::drain();
        self.0.fetch_and(value, order)
    }
}
