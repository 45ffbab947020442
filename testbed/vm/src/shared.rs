//! Numbers that CPUs share and that are not words of the machine.
//!
//! A length, a counter, a name: numbers that a fault or a call reads in passing. The machine under the clock does not
//! charge for them, because the figures of its paths include them, so they are not [`Word`]s. But other CPUs may
//! intervene between two reads, and the machine under the adversary must know: so each operation reports itself
//! ([`Word::touch`]). Counters from which only names are taken need not: their order affects the names alone.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use quell::Word;

/// A shared number on a machine with words of type `W`.
pub(crate) struct Shared<W> {
    value: AtomicU64,
    words: PhantomData<fn() -> W>,
}

impl<W: Word> Shared<W> {
    pub(crate) const fn new(value: u64) -> Self {
        Shared {
            value: AtomicU64::new(value),
            words: PhantomData,
        }
    }

    /// As [`Word::fence`], for these numbers; not charged for either.
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
