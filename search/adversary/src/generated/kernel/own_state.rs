//! What the kernel knows of its own half: the spaces of its pages, and which of them were taken away lazily.

use crate::cell::AdversaryWord;
use crate::generated::program::OWN_PAGES;
use crate::stage::Hw;
use quell::{AddressSpace, Frame, Stamp, Word};
use rustc_hash::FxBuildHasher;
use std::cell::Cell;
use std::hash::BuildHasher;

/// What was taken away lazily at a page, and not given to a new owner yet.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    pub(super) frame: Frame,
    /// `None` if it was flushed after all.
    pub(super) stamp: Option<Stamp>,
}

/// What the kernel knows of its own half.
pub(super) struct OwnHalf {
    /// The space of the pages whose entries are global, and that of the others.
    pub(super) spaces: [AddressSpace<Hw>; 2],
    pub(super) lock: AdversaryWord,
    /// Under the lock.
    pub(super) taken: [Cell<Option<Taken>>; OWN_PAGES],
}

impl OwnHalf {
    pub(super) fn new(spaces: [AddressSpace<Hw>; 2]) -> Self {
        OwnHalf {
            spaces,
            lock: AdversaryWord::new(0),
            taken: Default::default(),
        }
    }

    /// What stands in no word, as a number.
    pub(super) fn kept(&self) -> u64 {
        let taken = |taken: &Cell<Option<Taken>>| {
            let taken = taken.get();
            taken.map(|taken| (taken.frame.0, taken.stamp))
        };
        FxBuildHasher.hash_one(self.taken.each_ref().map(taken))
    }
}
