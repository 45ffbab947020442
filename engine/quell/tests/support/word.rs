//! A word of the host, with a hook after its additions.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use quell::Word;

/// The hook of a word.
pub trait AccessHooks: 'static {
    /// Runs after each addition.
    fn after_addition();
}

/// A word with a hook.
pub struct HookedWord<A>(AtomicU64, PhantomData<fn() -> A>);

// SAFETY: each operation is that of the inner word.
unsafe impl<A: AccessHooks> Word for HookedWord<A> {
    fn new(value: u64) -> Self {
        HookedWord(AtomicU64::new(value), PhantomData)
    }
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        let held = self.0.fetch_add(value, order);
        A::after_addition();
        held
    }
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_or(value, order)
    }
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_and(value, order)
    }
}
