//! Words of memory that CPUs share.
//!
//! Shared memory is part of the machine, so one engine runs on all machines. A kernel takes
//! [`core::sync::atomic::AtomicU64`]. The machine that predicts cost takes a word that charges for the transfer of
//! cache lines. An adversary takes a word that lets other CPUs run before each access.

use core::sync::atomic::Ordering;

/// The default of [`Word::BATCH_BITS`]. `space` checks it against the number of CPUs.
pub(crate) const BATCH_BITS: u32 = if cfg!(feature = "cpus-8192") { 15 } else { 12 };

/// Provides the operations of an atomic 64-bit word that CPUs share.
///
/// A kernel uses [`core::sync::atomic::AtomicU64`]. Machines in software have words of their own, for example to count
/// accesses. Orderings have the meaning that Rust's memory model gives them.
///
/// # Examples
///
/// ```
/// use quell::Word;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// let word: AtomicU64 = Word::new(5);
/// word.fetch_max(7, Relaxed);
/// assert_eq!(word.into_inner(), 7);
/// ```
///
/// # Safety
/// The engine synchronises other memory with words, as locks do. So each operation must be atomic and have at least the
/// effect that its name and its `Ordering` promise. A word must hold the value that was last written to it.
#[allow(unsafe_code)] // A declaration: there is nothing unsafe in here.
pub unsafe trait Word: Send + Sync + Sized {
    /// The number of bits of a space's flush word that count its outstanding batches.
    ///
    /// The default is enough for all CPUs that the engine supports. Machines under test use few bits, so that they
    /// reach the limit.
    #[doc(hidden)]
    const BATCH_BITS: u32 = BATCH_BITS;
    /// The number of neighbouring CPUs that count the answers to a shared request in one word: a power of two.
    ///
    /// Machines under test have small groups, so that a few CPUs are several groups.
    #[doc(hidden)]
    const GROUP: usize = 8;
    /// Makes a word that holds `value`.
    fn new(value: u64) -> Self;
    /// Executes a fence of the memory model, like [`core::sync::atomic::fence`].
    fn fence(order: Ordering);
    /// Announces that the CPU is about to access shared memory that isn't a word.
    ///
    /// `place` is an address, and `writes` is set for a store. The default does nothing. A machine in software that
    /// schedules CPUs itself may switch CPUs here.
    #[inline]
    fn touch(place: usize, writes: bool) {
        let _ = (place, writes);
    }
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Writes the word and returns the old value.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Writes `new` if the word holds `current`. Returns the old value: `Ok` if it wrote, `Err` if it didn't.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    /// Adds `value`, wrapping around. Returns the old value.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
    /// Sets the bits that are set in `value`. Returns the old value.
    fn fetch_or(&self, value: u64, order: Ordering) -> u64;
    /// Clears the bits that are clear in `value`. Returns the old value.
    fn fetch_and(&self, value: u64, order: Ordering) -> u64;
    /// Raises the word to at least `value`. Returns the old value.
    #[inline]
    #[track_caller]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        let mut held = self.load(Ordering::Relaxed);
        while held < value {
            match self.compare_exchange(held, value, order, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(now) => held = now,
            }
        }
        held
    }
}

/// Returns whether the word is at this address.
pub(crate) fn is_at<W>(word: &W, address: usize) -> bool {
    core::ptr::from_ref(word) as usize == address
}

/// Returns the name of the word at this address. For tools that show the engine's steps word by word.
pub(crate) fn name_at<'w, W: 'w>(
    words: impl IntoIterator<Item = (&'w W, &'static str)>,
    address: usize,
) -> Option<&'static str> {
    let mut words = words.into_iter();
    let (_, name) = words.find(|(word, _)| is_at(*word, address))?;
    Some(name)
}

#[cfg(target_has_atomic = "64")]
#[allow(unsafe_code)]
// SAFETY: the standard library's atomics are the model that the trait describes.
unsafe impl Word for core::sync::atomic::AtomicU64 {
    #[inline]
    fn new(value: u64) -> Self {
        Self::new(value)
    }
    #[inline]
    fn fence(order: Ordering) {
        core::sync::atomic::fence(order);
    }
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order)
    }
    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
    #[inline]
    fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_or(value, order)
    }
    #[inline]
    fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_and(value, order)
    }
    #[inline]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_max(value, order)
    }
}
