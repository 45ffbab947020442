//! Implements numbers that CPUs share and that aren't words of the machine.
//!
//! Such a number is, for example, a length, a counter, or a name that a fault or a call reads in passing. The clock's
//! costs per path already include reading them, so they are not [`Word`]s, which would be charged again. But other CPUs
//! may act between two reads, and the adversary must be able to let them. So each operation reports itself
//! ([`Word::touch`]). Counters that only provide names don't report: their order affects only the names.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use quell::Word;

/// A shared number on a machine with words of type `W`.
pub(crate) struct SharedNumber<W> {
    value: AtomicU64,
    words: PhantomData<fn() -> W>,
}

impl<W: Word> SharedNumber<W> {
    pub(crate) const fn new(value: u64) -> Self {
        SharedNumber { value: AtomicU64::new(value), words: PhantomData }
    }

    /// Executes a fence, as [`Word::fence`], for these numbers. Costs no virtual time either.
    pub(crate) fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }

    fn touch(&self, writes: bool) {
        W::touch(&raw const self.value as usize, writes);
    }

    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.touch(false);
        self.value.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.touch(true);
        self.value.store(value, order);
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.touch(true);
        self.value.fetch_add(value, order)
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.touch(true);
        self.value.fetch_sub(value, order)
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.touch(true);
        self.value.fetch_max(value, order)
    }
}
