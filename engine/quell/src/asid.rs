//! System-wide tags: Arm ASIDs, and x86 PCIDs if invalidations are broadcast.
//!
//! A broadcast names a tag, so a tag must name the same space on every CPU. We assign tags in ascending order. When
//! they run out, a *rollover* begins a new *tag generation*: every CPU must flush all its entries before it loads a
//! root under a tag of the new generation. The tags that CPUs are running under at that moment are reserved for the
//! spaces that have them.
//!
//! For a moment, a switching CPU already counts under its new tag but still has the old root loaded. If tags run out in
//! that moment, the old space gets no other tag until that CPU has left its root. Otherwise a broadcast under the other
//! tag would miss the CPU's walker, which still follows freed tables under the old one (C6).
//!
//! # Orderings
//!
//! Tags are assigned under a lock, and a CPU that takes the lock sees the tag generation. All accesses besides those of
//! the lock are relaxed, with one exception: in `acquire` the exchange of `active` is a Release, and in `roll_over` its
//! swap is an Acquire, so the rollover sees `leaving`. Relaxed is enough for the others, for two reasons:
//!
//! * A CPU that keeps its tag and a rollover that takes the tag away both *modify* `active`. If the rollover comes
//!   first, the CPU finds 0 and takes the lock. If it comes later, it reserves the very word that the CPU has written.
//!   All modifications of one word have one order, even relaxed ones.
//! * A CPU that is about to walk under a new tag and an initiator that has cleared an entry both execute the machine's
//!   fence ([`Hardware::fence`]). The CPU writes the tag, fences and walks. The initiator clears the entry, fences and
//!   reads the tag. So the initiator broadcasts under the CPU's tag, or the CPU walks the changed tables.

use crate::hardware::{Hardware, Invalidation, Tag};
use crate::word::{Word, is_at, name_at};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A tag word: the tag in the low 16 bits, the tag generation above.
const TAG_BITS: u32 = 16;

fn tag_of(word: u64) -> Tag {
    Tag(word as u16)
}

/// The latest tag of an address space.
pub(crate) struct SpaceTag<W> {
    /// A tag word; 0 before the first load.
    word: W,
}

impl<W: Word> SpaceTag<W> {
    pub(crate) fn new() -> Self {
        SpaceTag { word: W::new(0) }
    }

    /// Returns the tag, or `None` if no CPU has ever loaded the space.
    pub(crate) fn dealt(&self) -> Option<Tag> {
        match self.word.load(Relaxed) {
            0 => None,
            word => Some(tag_of(word)),
        }
    }

    pub(crate) fn has_word(&self, address: usize) -> bool {
        is_at(&self.word, address)
    }
}

/// The tag that one CPU runs under.
#[repr(align(64))]
pub(crate) struct RunningTag<W> {
    /// The tag word in use on this CPU. A rollover sets it to 0 until the CPU switches again.
    active: W,
    /// The tag word that was in use on this CPU at the last rollover.
    reserved: W,
    /// The tag word of the old root while the CPU switches to another one; otherwise 0.
    leaving: W,
    /// Set if the CPU must flush all entries before it loads another tag.
    flush_pending: W,
}

impl<W: Word> RunningTag<W> {
    pub(crate) fn new() -> Self {
        RunningTag {
            active: W::new(0),
            reserved: W::new(0),
            leaving: W::new(0),
            flush_pending: W::new(0),
        }
    }

    /// Records that a CPU that is going offline uses no tag any more.
    pub(crate) fn forget(&self) {
        // No lock is needed: a rollover at the same time writes the same two values. It may reserve this CPU's tag or
        // not, which makes no difference: the CPU flushes everything when it comes back.
        self.active.store(0, Relaxed);
        // We keep `reserved` until the next rollover. The space that it's reserved for may already have kept that tag
        // for this tag generation, so we must not assign it to another space.
        self.flush_pending.store(1, Relaxed);
    }

    /// Records that the CPU has left its old root, after it took a tag for another.
    #[inline]
    pub(crate) fn has_left(&self) {
        // Relaxed: the CPU has loaded the new root before this store, and after that load nothing walks below the old
        // root.
        self.leaving.store(0, Relaxed);
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.active, "running.active"),
            (&self.reserved, "running.reserved"),
            (&self.leaving, "running.leaving"),
            (&self.flush_pending, "running.flush_pending"),
        ];
        name_at(names, address)
    }
}

/// The running tags of all CPUs.
pub(crate) trait RunningTags<W> {
    /// Returns the running tags in the order of the CPUs.
    fn all<'t>(&'t self) -> impl Iterator<Item = &'t RunningTag<W>>
    where
        W: 't;
}

/// Assigns system-wide tags to address spaces.
#[repr(align(64))]
pub(crate) struct GlobalTags<W> {
    lock: W,
    /// The tag generation, at least 1.
    generation: W,
    /// The next tag to assign.
    next: W,
    /// The highest tag that may be assigned.
    highest: u16,
}

impl<W: Word> GlobalTags<W> {
    /// Makes an allocator of the tags up to `highest`. There are more tags than CPUs:
    /// [`Features::check`](crate::Features::check) ensures it.
    pub(crate) fn new(highest: u16) -> Self {
        GlobalTags { lock: W::new(0), generation: W::new(1), next: W::new(1), highest }
    }

    /// Returns the tag under which this CPU loads `space`, and whether tags had run out.
    ///
    /// `mine` is the calling CPU's running tag. Interrupts are masked. The caller calls [`RunningTag::has_left`] once
    /// the root is loaded.
    pub(crate) fn acquire<H: Hardware<Word = W>>(
        &self,
        hw: &H,
        space: &SpaceTag<W>,
        mine: &RunningTag<W>,
        running: &impl RunningTags<W>,
    ) -> (Tag, bool) {
        let word = space.word.load(Relaxed);
        let active = mine.active.load(Relaxed);
        // Fast path: the tag belongs to this generation, and no rollover took `active` away between the two reads. A
        // later rollover finds the new word in `active` and reserves it.
        if word >> TAG_BITS == self.generation.load(Relaxed) && active != 0 {
            mine.leaving.store(active, Relaxed);
            // Release pairs with `roll_over`: a rollover that reads the new word also sees in `leaving` the tag that
            // this CPU is leaving. Otherwise it could give the old space another tag while this CPU still walks its
            // freed tables.
            // A weaker ordering fails the loom race "a tag rollover while a CPU changes its root".
            let taken = (mine.active).compare_exchange(active, word, Release, Relaxed);
            if taken.is_ok() {
                return (tag_of(word), false);
            }
            mine.leaving.store(0, Relaxed);
        }
        // Acquire pairs with the unlock in `acquire`: this CPU sees the allocator's words as the previous lock holder
        // left them. Otherwise two spaces could get one tag.
        // A weaker ordering fails the loom race "two CPUs need tags".
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            hw.relax();
        }
        let mut word = space.word.load(Relaxed);
        let mut rolled_over = false;
        // A rollover has cleared `active`, so the tag of the loaded root is in `reserved`.
        let loaded = match mine.active.load(Relaxed) {
            0 => mine.reserved.load(Relaxed),
            word => word,
        };
        if word >> TAG_BITS != self.generation.load(Relaxed) {
            (word, rolled_over) = self.deal(hw, word, running);
            space.word.store(word, Relaxed);
        }
        // We flush entries of the last tag generation before we load a tag of this one. [mutant RolloverSkipsFlush]
        if mine.flush_pending.swap(0, Relaxed) != 0 {
            hw.invalidate(Invalidation::All);
        }
        mine.leaving.store(loaded, Relaxed);
        mine.active.store(word, Relaxed);
        // Release pairs with the lock in `acquire`: the next lock holder sees which tags are assigned, and doesn't
        // assign them to other spaces.
        // A weaker ordering fails the loom race "two CPUs need tags".
        self.lock.store(0, Release);
        // Fence pairs with `broadcast::fence_before_tag`: the tag is visible before the first walk under it. So the
        // initiator of a broadcast reads this tag, or this CPU walks tables in which the entry is cleared. On Arm a
        // store and a later walk aren't ordered by themselves.
        // Without this fence, an invalidation misses this CPU (mutant `TagWalkedBeforeSeen`, C1).
        hw.fence();
        (tag_of(word), rolled_over)
    }

    /// Assigns a tag word of the current generation. Called under the lock; `old` is the space's last word.
    fn deal<H: Hardware<Word = W>>(
        &self,
        hw: &H,
        old: u64,
        running: &impl RunningTags<W>,
    ) -> (u64, bool) {
        let generation = self.generation.load(Relaxed);
        if let Some(word) = self.keep_or_take(hw, old, generation, running) {
            return (word, false);
        }
        self.roll_over(generation + 1, running);
        let word = self.keep_or_take(hw, old, generation + 1, running);
        (word.expect("there are more tags than CPUs"), true)
    }

    fn keep_or_take<H: Hardware<Word = W>>(
        &self,
        hw: &H,
        old: u64,
        generation: u64,
        running: &impl RunningTags<W>,
    ) -> Option<u64> {
        let kept = generation << TAG_BITS | u64::from(tag_of(old).0);
        if old != 0 && keep_reserved(old, kept, running) {
            return Some(kept);
        }
        // A CPU between two roots still walks below its old one, under that space's last tag. It holds no lock and
        // takes no interrupt there, so our wait is short. We compare only the tags, not the generations: if a space has
        // kept its tag for a new generation, `leaving` may still contain the old generation. [mutant
        // RolloverForgetsLeaving]
        let is_left = |cpu: &RunningTag<W>| {
            let leaving = cpu.leaving.load(Relaxed);
            leaving != 0 && tag_of(leaving) == tag_of(old)
        };
        while running.all().any(is_left) {
            hw.relax();
        }
        self.next_free(generation, running)
    }

    fn next_free(&self, generation: u64, running: &impl RunningTags<W>) -> Option<u64> {
        loop {
            let next = self.next.load(Relaxed);
            if next > u64::from(self.highest) {
                return None;
            }
            self.next.store(next + 1, Relaxed);
            let set_aside =
                running.all().any(|cpu| u64::from(tag_of(cpu.reserved.load(Relaxed)).0) == next);
            // A tag that a CPU was running under at the rollover stays with its space. [mutant RolloverForgetsReserved]
            if !set_aside {
                return Some(generation << TAG_BITS | next);
            }
        }
    }

    /// Begins a new tag generation. Called under the lock.
    fn roll_over(&self, generation: u64, running: &impl RunningTags<W>) {
        self.generation.store(generation, Relaxed);
        for cpu in running.all() {
            // If `active` is 0, the CPU hasn't switched since the last rollover and still runs under its reserved tag.
            // Acquire pairs with `acquire`: if the CPU is about to load the tag that we reserve here, our later read of
            // `leaving` sees the tag that it leaves.
            // A weaker ordering fails the loom race "a tag rollover while a CPU changes its root".
            match cpu.active.swap(0, Acquire) {
                0 => {}
                word => cpu.reserved.store(word, Relaxed),
            }
            cpu.flush_pending.store(1, Relaxed);
        }
        self.next.store(1, Relaxed);
    }
}

/// Keeps the tag of `old` for its space if a CPU was running under it.
///
/// Writes the new word for every CPU that has reserved `old`. Otherwise the next rollover could give the space another
/// tag while one of these CPUs still runs under this one.
fn keep_reserved<W: Word>(old: u64, new: u64, running: &impl RunningTags<W>) -> bool {
    let mut found = false;
    for cpu in running.all() {
        // Update every CPU that runs the space: the next rollover searches each of them for this word. [mutants
        // RolloverForgetsReserved, RolloverTellsOneAlone]
        if cpu.reserved.load(Relaxed) == old {
            cpu.reserved.store(new, Relaxed);
            found = true;
        }
    }
    found
}
