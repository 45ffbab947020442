//! Tags (S2): which PCID or ASID an address space runs under.
//!
//! There are more address spaces than tags, so a tag is lent. Two ways, after the two kinds of
//! hardware:
//!
//! * **Per CPU** ([`Slot`]): a tag has a meaning of its own on each CPU. A few slots name the spaces
//!   that ran here last; each remembers how far the CPU has caught up with its space. Loading a
//!   space that still has its slot keeps its entries, if nothing was flushed meanwhile; a space
//!   without a slot takes one over, and the tag is flushed as it is loaded (C5). Space ids are
//!   never used again, so a slot cannot take a new space for an old one.
//!
//! * **System-wide** ([`GlobalTags`]): a tag means the same everywhere, because invalidations are
//!   broadcast by tag. Tags are dealt in turn; when they run out, a new *tag generation* begins:
//!   every CPU must flush all its entries before it loads a tag of the new generation, and the
//!   tags that CPUs are running on at that moment are set aside for their owners.
//!
//! # Orderings
//!
//! Dealing has a lock, and whoever takes it sees the tag generation. Outside of it, all is relaxed,
//! for two reasons. A CPU that keeps its tag and a rollover that takes it away both *modify*
//! `active`: either the rollover comes first, the CPU finds 0 and takes the lock, or it comes later
//! and sets aside the very word that the CPU has put there; one word has one order, whatever the
//! ordering. And between a CPU that is about to walk under a new tag and one that has cleared an
//! entry stand two fences of the machine ([`Hardware::fence`]): the tag, the
//! fence, the walk here; the entry, the fence, the tag there.
//!
//! What neither guarantees: that a space keeps its entries. Tags are a hint to the TLB, correctness
//! rests on the generations in [`space`](crate::space) alone.

use crate::features::Tagging;
use crate::hardware::{Tag, Word};
use crate::mutant::Mutant;
use crate::stats::Counter;
use crate::{AddressSpace, CpuId, Engine, Hardware, Invalidate};
use core::sync::atomic::Ordering;

/// One per-CPU tag: which space it holds, and how far this CPU has caught up with it.
/// Written and read by its own CPU alone.
#[repr(align(64))]
pub struct Slot<H: Hardware> {
    /// The id of the space, or 0.
    pub(crate) space: H::Word,
    /// The space's flush generation that this CPU has caught up with.
    pub(crate) generation: H::Word,
    /// The flush clock as it was before the tag was last flushed whole.
    pub(crate) flushed_at: H::Word,
}

impl<H: Hardware> Default for Slot<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Hardware> Slot<H> {
    /// A slot that holds no space.
    pub fn new() -> Self {
        Slot {
            space: H::Word::new(0),
            generation: H::Word::new(0),
            flushed_at: H::Word::new(0),
        }
    }
}

/// The tag of slot `index`. Tag 0 stays the kernel's, so code that knows nothing of tags fails early.
pub(crate) fn slot_tag(index: usize) -> Tag {
    Tag(index as u16 + 1)
}

/// What one CPU runs under, on machines with system-wide tags.
#[repr(align(64))]
pub(crate) struct RunningTag<W> {
    /// The tag word that runs here; 0 after a rollover, until the CPU switches again.
    pub(crate) active: W,
    /// The tag word that ran here when the last rollover happened.
    pub(crate) reserved: W,
    /// All entries must go before another tag is loaded.
    pub(crate) flush_pending: W,
}

impl<W: Word> RunningTag<W> {
    pub(crate) fn new() -> Self {
        RunningTag {
            active: W::new(0),
            reserved: W::new(0),
            flush_pending: W::new(0),
        }
    }
}

/// The dealer of system-wide tags.
#[repr(align(64))]
pub(crate) struct GlobalTags<W> {
    lock: W,
    /// The tag generation, at least 1.
    generation: W,
    /// The next tag to deal.
    next: W,
}

/// A tag word: the tag generation above, the tag in the low 16 bits.
const TAG_BITS: u32 = 16;

fn tag_of(word: u64) -> Tag {
    Tag(word as u16)
}

impl<W: Word> GlobalTags<W> {
    pub(crate) fn new() -> Self {
        GlobalTags {
            lock: W::new(0),
            generation: W::new(1),
            next: W::new(1),
        }
    }
}

impl<H: Hardware> Engine<'_, H> {
    /// The tag to broadcast invalidations of `space` under, `None` if it has never been loaded. On machines
    /// without tags every CPU may have it loaded under none.
    ///
    /// The caller has made its table stores visible to all walkers *before* this read. Then a
    /// rollover either happens before the read, and the new tag is seen; or after it, and then
    /// whoever runs the space under a new tag walked tables that were already changed.
    pub(crate) fn broadcast_tag(&self, space: &AddressSpace<H>) -> Option<Tag> {
        if self.features.tagging == Tagging::None && !self.hw.mutant(Mutant::UntaggedUnflushed) {
            return Some(Tag::KERNEL);
        }
        match space.tag.load(Ordering::Relaxed) {
            0 => None,
            word => Some(tag_of(word)),
        }
    }

    /// The system-wide tag to load `space` under on this CPU. Interrupts are masked.
    pub(crate) fn acquire_global_tag(&self, me: CpuId, space: &AddressSpace<H>) -> Tag {
        let running = &self.cpus[me.index()].running;
        let word = space.tag.load(Ordering::Relaxed);
        let active = running.active.load(Ordering::Relaxed);
        // The tag is of this generation and no rollover took `active` away between the two reads.
        // A rollover that comes later finds the new word in `active` and sets it aside.
        if word >> TAG_BITS == self.tags.generation.load(Ordering::Relaxed)
            && active != 0
            && running
                .active
                .compare_exchange(active, word, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            return tag_of(word);
        }
        self.lock_tags();
        let mut word = space.tag.load(Ordering::Relaxed);
        if word >> TAG_BITS != self.tags.generation.load(Ordering::Relaxed) {
            word = self.deal_tag(me, word);
            space.tag.store(word, Ordering::Relaxed);
        }
        if running.flush_pending.swap(0, Ordering::Relaxed) != 0
            && !self.hw.mutant(Mutant::RolloverSkipsFlush)
        {
            self.hw.invalidate(Invalidate::All);
        }
        running.active.store(word, Ordering::Relaxed);
        self.tags.lock.store(0, Ordering::Release);
        // The tag is visible before this CPU walks under it: whoever clears an entry fences and then
        // reads the tag. A store and a later walk are not ordered by themselves on Arm.
        if !self.hw.mutant(Mutant::TagWalkedBeforeSeen) {
            self.hw.fence();
        }
        tag_of(word)
    }

    /// No other tag of this CPU is in use any more: it went offline and dropped all entries.
    pub(crate) fn forget_running_tag(&self, me: CpuId) {
        // No lock: a rollover that happens meanwhile leaves the same behind, and nobody else reads it.
        let running = &self.cpus[me.index()].running;
        running.active.store(0, Ordering::Relaxed);
        // What is set aside stays so until the next rollover: its owner may have been given it
        // for this tag generation, and it must not be dealt a second time.
        running.flush_pending.store(1, Ordering::Relaxed);
    }

    fn lock_tags(&self) {
        while self
            .tags
            .lock
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            self.hw.relax();
        }
    }

    /// Deals a tag word of the current generation, under the lock. `old` is the space's last one.
    fn deal_tag(&self, me: CpuId, old: u64) -> u64 {
        let generation = self.tags.generation.load(Ordering::Relaxed);
        if old != 0 && self.keep_reserved(old, generation) {
            return generation << TAG_BITS | u64::from(tag_of(old).0);
        }
        if let Some(word) = self.next_free_tag(generation) {
            return word;
        }
        self.roll_over(me, generation + 1);
        if old != 0 && self.keep_reserved(old, generation + 1) {
            return (generation + 1) << TAG_BITS | u64::from(tag_of(old).0);
        }
        self.next_free_tag(generation + 1)
            .expect("there are more tags than CPUs")
    }

    /// If a CPU was running on `old` when the generation began, the space keeps that tag. Every CPU
    /// that set it aside is told the new word, or the tag could be dealt twice later.
    fn keep_reserved(&self, old: u64, generation: u64) -> bool {
        if self.hw.mutant(Mutant::RolloverForgetsReserved) {
            return false;
        }
        let mut found = false;
        for cpu in self.cpus {
            if cpu.running.reserved.load(Ordering::Relaxed) == old {
                let word = generation << TAG_BITS | u64::from(tag_of(old).0);
                cpu.running.reserved.store(word, Ordering::Relaxed);
                found = true;
            }
        }
        found
    }

    fn next_free_tag(&self, generation: u64) -> Option<u64> {
        loop {
            let next = self.tags.next.load(Ordering::Relaxed);
            if next > u64::from(self.highest_tag) {
                return None;
            }
            self.tags.next.store(next + 1, Ordering::Relaxed);
            let set_aside = self.cpus.iter().any(|cpu| {
                u64::from(tag_of(cpu.running.reserved.load(Ordering::Relaxed)).0) == next
            });
            if !set_aside || self.hw.mutant(Mutant::RolloverForgetsReserved) {
                return Some(generation << TAG_BITS | next);
            }
        }
    }

    /// Begins a new tag generation, under the lock.
    fn roll_over(&self, me: CpuId, generation: u64) {
        self.count(me, Counter::Rollovers, 1);
        self.tags.generation.store(generation, Ordering::Relaxed);
        for cpu in self.cpus {
            // A CPU that has not switched since the last rollover still runs on what was set
            // aside then.
            match cpu.running.active.swap(0, Ordering::Relaxed) {
                0 => {}
                word => cpu.running.reserved.store(word, Ordering::Relaxed),
            }
            cpu.running.flush_pending.store(1, Ordering::Relaxed);
        }
        self.tags.next.store(1, Ordering::Relaxed);
    }
}
