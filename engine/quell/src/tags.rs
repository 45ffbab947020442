//! Tags that each CPU gives their meaning (S2): x86 PCIDs, RISC-V ASIDs of each hart's own.
//!
//! There are more address spaces than tags, so a tag is lent. Each CPU has a few slots, one for each tag; a slot names
//! the space that it is lent to and remembers how far the CPU has caught up with that space. Loading a space that still
//! has its slot keeps its entries, if nothing was flushed meanwhile; a space without a slot takes one over, and the tag
//! is flushed as it is loaded (C5). Up to eight slots are searched and taken over in turn; with more, the id of a space
//! names its slot. Space ids are never used again, so a slot cannot take a new space for an old one.
//!
//! It is not guaranteed that a space keeps its entries. Tags are a hint to the TLB; correctness
//! rests on the generations in [`space`](crate::space) alone. Tags that mean the same on every CPU are
//! dealt out in [`asid`](crate::asid).

use crate::hardware::{Hardware, Tag};
use crate::space::SpaceId;
use crate::word::Word;
use core::sync::atomic::Ordering::Relaxed;

/// One per-CPU tag: its space, and which generation of it this CPU has flushed.
///
/// Written and read by its own CPU alone.
#[repr(align(64))]
pub struct Slot<H: Hardware> {
    /// The id of the space, or 0.
    space: H::Word,
    /// The space's flush generation that this CPU has caught up with.
    generation: H::Word,
    /// The flush clock as it was before the tag was last flushed whole.
    flushed_at: H::Word,
}

impl<H: Hardware> Default for Slot<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> Slot<H> {
    /// Makes a slot that holds no space.
    pub fn new() -> Self {
        Slot {
            space: H::Word::new(0),
            generation: H::Word::new(0),
            flushed_at: H::Word::new(0),
        }
    }

    /// Whether it holds this space.
    #[inline]
    pub(crate) fn holds(&self, space: SpaceId) -> bool {
        self.space.load(Relaxed) == space.0
    }

    /// The generation that this CPU has caught up with.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// This CPU has flushed what this generation and those before it changed.
    #[inline]
    pub(crate) fn caught_up_with(&self, generation: u64) {
        self.generation.store(generation, Relaxed);
    }

    /// The time of the flush clock before the tag was last flushed whole.
    #[inline]
    pub(crate) fn flushed_at(&self) -> u64 {
        self.flushed_at.load(Relaxed)
    }

    /// The tag is flushed whole, after the flush clock has shown `now`.
    #[inline]
    pub(crate) fn flushed(&self, now: u64) {
        self.flushed_at.store(now, Relaxed);
    }

    /// The slot is this space's from here on; its tag is flushed as it is loaded.
    pub(crate) fn take_over(&self, space: SpaceId, generation: u64, now: u64) {
        self.space.store(space.0, Relaxed);
        self.flushed(now);
        self.caught_up_with(generation);
    }

    /// The slot holds no space any more.
    pub(crate) fn forget(&self) {
        self.space.store(0, Relaxed);
    }

    pub(crate) fn has_word(&self, address: usize) -> bool {
        [&self.space, &self.generation, &self.flushed_at]
            .iter()
            .any(|word| core::ptr::from_ref(*word) as usize == address)
    }
}

/// The tag of slot `index`. Tag 0 stays the kernel's, so code that knows nothing of tags fails early.
pub(crate) fn slot_tag(index: usize) -> Tag {
    Tag(index as u16 + 1)
}
