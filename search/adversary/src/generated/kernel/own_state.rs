//! The kernel's state for its own half: the spaces of its pages, and lazily unmapped pages.

use crate::cell::AdversaryWord;
use crate::generated::program::OWN_PAGES;
use crate::stage::Hw;
use quell::{AddressSpace, Frame, Stamp, Word};
use rustc_hash::FxBuildHasher;
use std::cell::Cell;
use std::hash::BuildHasher;

/// A lazily unmapped page whose frame has no new owner yet.
#[derive(Clone, Copy)]
pub(super) struct LazyUnmap {
    pub(super) frame: Frame,
    /// The stamp of its deferred flush, or `None` if it was flushed after all.
    pub(super) stamp: Option<Stamp>,
}

/// The kernel's state of its own half.
pub(super) struct OwnHalf {
    /// The space of the pages with global entries, and that of the others.
    pub(super) spaces: [AddressSpace<Hw>; 2],
    pub(super) lock: AdversaryWord,
    /// The lazily unmapped pages. Protected by the lock.
    pub(super) taken: [Cell<Option<LazyUnmap>>; OWN_PAGES],
}

impl OwnHalf {
    pub(super) fn new(spaces: [AddressSpace<Hw>; 2]) -> Self {
        OwnHalf { spaces, lock: AdversaryWord::new(0), taken: Default::default() }
    }

    /// Returns a digest of the state that is in no word.
    pub(super) fn kept(&self) -> u64 {
        let taken = |taken: &Cell<Option<LazyUnmap>>| {
            let taken = taken.get();
            taken.map(|taken| (taken.frame.0, taken.stamp))
        };
        FxBuildHasher.hash_one(self.taken.each_ref().map(taken))
    }
}
