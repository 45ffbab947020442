//! Per-CPU tags: x86 PCIDs, and RISC-V ASIDs if each hart has its own.
//!
//! There are more address spaces than tags, so we lend tags. Each CPU has a few slots, one for each tag. A slot
//! contains the id of its present space and the generation of that space that the CPU has caught up with. If a space
//! still has its slot and nothing was flushed meanwhile, loading it keeps its entries. A space without a slot takes one
//! over, and the load flushes the tag (C5). Up to eight slots are searched and taken over in turn; with more, the id of
//! a space selects its slot. Space ids are never used again, so a slot can't confuse a new space with an old one.
//!
//! A space may lose its entries at any time. Tags are a hint to the TLB; correctness depends only on the generations in
//! [`space`](crate::space). [`asid`](crate::asid) assigns system-wide tags.

use crate::hardware::{Hardware, Tag};
use crate::space::SpaceId;
use crate::word::{Word, is_at};
use core::sync::atomic::Ordering::Relaxed;

/// Records the address space that uses a CPU's tag, and the flushes made there.
///
/// For machines on which each CPU has its own tags (x86 PCIDs). Lend slots to
/// [`PerCpuData::with_slots`](crate::PerCpuData::with_slots) if a CPU should use more than eight tags. Only its own CPU
/// reads and writes a slot.
///
/// # Examples
///
/// ```
/// use quell::{PerCpuData, Slot};
/// use quell::example::OneCpu;
/// let slots = [(); 16].map(|()| Slot::new());
/// // This CPU may use sixteen tags.
/// let _state = PerCpuData::<OneCpu>::with_slots(&slots);
/// ```
#[repr(align(64))]
pub struct Slot<H: Hardware> {
    /// The id of the space, or 0.
    space: H::Word,
    /// The flush generation of the space that this CPU has caught up with.
    generation: H::Word,
    /// The time of the flush clock before the last flush of the whole tag.
    flushed_at: H::Word,
}

impl<H: Hardware> Default for Slot<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> Slot<H> {
    /// Makes a slot whose tag no space uses.
    pub fn new() -> Self {
        Slot { space: H::Word::new(0), generation: H::Word::new(0), flushed_at: H::Word::new(0) }
    }

    /// Returns whether the slot holds this space.
    #[inline]
    pub(crate) fn holds(&self, space: SpaceId) -> bool {
        self.space.load(Relaxed) == space.0
    }

    /// Returns the generation that this CPU has caught up with.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Records that this CPU has flushed the changes up to and including `generation`.
    #[inline]
    pub(crate) fn caught_up_with(&self, generation: u64) {
        self.generation.store(generation, Relaxed);
    }

    /// Returns the time of the flush clock before the last flush of the whole tag.
    #[inline]
    pub(crate) fn flushed_at(&self) -> u64 {
        self.flushed_at.load(Relaxed)
    }

    /// Records a flush of the whole tag, made after the clock read `now`.
    #[inline]
    pub(crate) fn flushed(&self, now: u64) {
        self.flushed_at.store(now, Relaxed);
    }

    /// Gives the slot to this space. The load flushes its tag.
    pub(crate) fn take_over(&self, space: SpaceId, generation: u64, now: u64) {
        self.space.store(space.0, Relaxed);
        self.flushed(now);
        self.caught_up_with(generation);
    }

    /// Takes the slot away from its space.
    pub(crate) fn forget(&self) {
        self.space.store(0, Relaxed);
    }

    pub(crate) fn has_word(&self, address: usize) -> bool {
        [&self.space, &self.generation, &self.flushed_at].iter().any(|word| is_at(*word, address))
    }
}

/// Returns the tag of slot `index`. Tag 0 remains the kernel's, so code that ignores tags fails early.
pub(crate) fn slot_tag(index: usize) -> Tag {
    Tag(index as u16 + 1)
}
