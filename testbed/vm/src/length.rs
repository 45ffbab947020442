//! The length of a file, and the race between truncating it and using a page beyond its new end.
//!
//! A page is used under its slot's lock, after the length was checked there. A truncation stores the length first and
//! then empties every slot beyond it. So either it finds the page, or the page's user finds the new length. But a
//! truncation skips slots that do not exist yet, without a lock; the CPU that creates one checks the length next. Each
//! of the two writes one thing and then reads the other's, which needs fences.

use crate::shared::Shared;
use core::sync::atomic::Ordering;
use quell::Word;

/// The length of a file, in bytes.
pub(crate) struct Length<W> {
    bytes: Shared<W>,
}

impl<W: Word> Length<W> {
    pub(crate) fn new(bytes: u64) -> Self {
        Length {
            bytes: Shared::new(bytes),
        }
    }

    /// The length. Looked at to use a page: after its slot was made and locked.
    pub(crate) fn get(&self) -> u64 {
        // SeqCst pairs with `set`: this CPU has made the slot before it reads the length, so it sees the new
        // length, or the truncation sees the slot.
        // Lost without it: a file is cut while a page beyond its end is made.
        Shared::<W>::fence(Ordering::SeqCst);
        self.bytes.load(Ordering::Relaxed)
    }

    /// Makes the file at least so long. The caller holds the file's `lock_length`.
    pub(crate) fn extend(&self, bytes: u64) {
        // Relaxed: the page beyond the old end is under its slot's lock.
        self.bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    /// Sets the length, for a truncation that then looks for slots beyond it.
    pub(crate) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        // SeqCst pairs with `get`: the truncation looks for slots next, so it sees a slot that was made, or
        // the CPU that makes it sees the new length.
        // Lost without it: a file is cut while a page beyond its end is made.
        Shared::<W>::fence(Ordering::SeqCst);
    }
}
