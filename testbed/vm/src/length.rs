//! Keeps the length of a file, and decides races between a truncation and a use of a page beyond the new end.
//!
//! A page is used under its slot's lock, after a check of the length. A truncation first stores the length and then
//! empties every slot beyond it. So either it finds the page, or the page's user finds the new length. However, a
//! truncation skips slots that don't exist yet, without a lock, and the CPU that creates such a slot checks the length
//! next. Each side writes one word and then reads the other's, which requires fences.

use crate::shared::SharedNumber;
use core::sync::atomic::Ordering;
use quell::Word;

/// The length of a file, in bytes.
pub(crate) struct Length<W> {
    bytes: SharedNumber<W>,
}

impl<W: Word> Length<W> {
    pub(crate) fn new(bytes: u64) -> Self {
        Length { bytes: SharedNumber::new(bytes) }
    }

    /// Returns the length. To use a page, call this after its slot was made and locked.
    pub(crate) fn get(&self) -> u64 {
        // SeqCst pairs with `set`: this CPU made the slot before it reads the length. So it sees the new length, or the
        // truncation sees the slot. Lost without it: a file is cut while a page beyond its end is made.
        SharedNumber::<W>::fence(Ordering::SeqCst);
        self.bytes.load(Ordering::Relaxed)
    }

    /// Extends the file to at least this length. The caller holds the file's `lock_length`.
    pub(crate) fn extend(&self, bytes: u64) {
        // Relaxed: the page beyond the old end is under its slot's lock.
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Sets the length, for a truncation that then searches for slots beyond it.
    pub(crate) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        // SeqCst pairs with `get`: the truncation searches for slots next. So it sees a slot that was made, or the CPU
        // that makes it sees the new length. Lost without it: a file is cut while a page beyond its end is made.
        SharedNumber::<W>::fence(Ordering::SeqCst);
    }
}
