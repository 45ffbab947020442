//! System-wide tags (S2): Arm ASIDs, and x86 PCIDs if invalidations are broadcast.
//!
//! A broadcast names a tag, so a tag must name the same space on every CPU. Tags are dealt in turn. When they run out,
//! a new *tag generation* begins: every CPU must flush all its entries before it loads a tag of the new generation, and
//! the tags that CPUs are running on at that moment are set aside for their owners.
//!
//! A CPU that switches is for a moment counted under the new tag while it still has the old root loaded. If tags run
//! out in that moment, the old space gets no other tag before that CPU has left its root. Otherwise a broadcast under
//! the other tag would miss the CPU's walker, which still follows freed tables under the old one (C6).
//!
//! # Orderings
//!
//! Tags are dealt under a lock, and a CPU that takes it sees the tag generation. Outside of the lock all accesses are
//! relaxed, except those of `leaving`, for two reasons:
//!
//! * A CPU that keeps its tag and a rollover that takes the tag away both *modify* `active`. If the rollover comes
//!   first, the CPU finds 0 and takes the lock. If it comes later, it sets aside the very word that the CPU has
//!   written. All modifications of one word have one order, even relaxed ones.
//! * A CPU that is about to walk under a new tag and an initiator that has cleared an entry both execute a fence of the
//!   machine ([`Hardware::fence`]). The first writes the tag, fences, walks. The second clears the entry, fences, reads
//!   the tag.

use crate::hardware::{Hardware, Invalidate, Tag};
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A tag word: the tag generation above, the tag in the low 16 bits.
const TAG_BITS: u32 = 16;

fn tag_of(word: u64) -> Tag {
    Tag(word as u16)
}

/// The tag that an address space was last dealt.
pub(crate) struct SpaceTag<W> {
    /// A tag word; 0 before the first load.
    word: W,
}

impl<W: Word> SpaceTag<W> {
    pub(crate) fn new() -> Self {
        SpaceTag { word: W::new(0) }
    }

    /// Returns the tag, or `None` if the space has never been loaded.
    pub(crate) fn dealt(&self) -> Option<Tag> {
        match self.word.load(Relaxed) {
            0 => None,
            word => Some(tag_of(word)),
        }
    }

    pub(crate) fn has_word(&self, address: usize) -> bool {
        core::ptr::from_ref(&self.word) as usize == address
    }
}

/// The tag that one CPU runs under.
#[repr(align(64))]
pub(crate) struct RunningTag<W> {
    /// The tag word in use here; 0 after a rollover, until the CPU switches again.
    active: W,
    /// The tag word that was in use here at the last rollover.
    reserved: W,
    /// The tag word of the root that is still loaded here while another is about to be loaded; otherwise 0.
    leaving: W,
    /// Set if all entries must be flushed before another tag is loaded.
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

    /// Notes that the CPU uses no tag any more: it goes offline and drops all entries.
    pub(crate) fn forget(&self) {
        // No lock: a rollover that happens meanwhile leaves the same values, and no other CPU reads them.
        self.active.store(0, Relaxed);
        // A tag set aside stays so until the next rollover: its owner may have been given it
        // for this tag generation, and it must not be dealt a second time.
        self.flush_pending.store(1, Relaxed);
    }

    /// Notes that the root that was loaded before the tag was taken is no longer loaded.
    #[inline]
    pub(crate) fn has_left(&self) {
        // Relaxed: no walk below the old root comes after the load of the new one, and that load came before.
        self.leaving.store(0, Relaxed);
    }

    pub(crate) fn word_name(&self, address: usize) -> Option<&'static str> {
        let names = [
            (&self.active, "running.active"),
            (&self.reserved, "running.reserved"),
            (&self.leaving, "running.leaving"),
            (&self.flush_pending, "running.flush_pending"),
        ];
        let at = |word: &W| core::ptr::from_ref(word) as usize == address;
        let name = names.into_iter().find(|(word, _)| at(word));
        name.map(|(_, name)| name)
    }
}

/// The running tags of all CPUs.
pub(crate) trait RunningTags<W> {
    /// Returns all of them, in the order of the CPUs.
    fn all<'t>(&'t self) -> impl Iterator<Item = &'t RunningTag<W>>
    where
        W: 't;
}

/// The dealer.
#[repr(align(64))]
pub(crate) struct GlobalTags<W> {
    lock: W,
    /// The tag generation, at least 1.
    generation: W,
    /// The next tag to deal.
    next: W,
    /// The highest tag that may be dealt.
    highest: u16,
}

impl<W: Word> GlobalTags<W> {
    /// Makes a dealer of the tags up to `highest`. There are more tags than CPUs: see
    /// [`Features::check`](crate::Features::check).
    pub(crate) fn new(highest: u16) -> Self {
        GlobalTags {
            lock: W::new(0),
            generation: W::new(1),
            next: W::new(1),
            highest,
        }
    }

    /// Returns the tag under which the calling CPU, which runs under `mine`, loads a space, and whether tags had run
    /// out. Interrupts are masked. [`RunningTag::has_left`] follows once the root is loaded.
    pub(crate) fn acquire<H: Hardware<Word = W>>(
        &self,
        hw: &H,
        space: &SpaceTag<W>,
        mine: &RunningTag<W>,
        running: &impl RunningTags<W>,
    ) -> (Tag, bool) {
        let word = space.word.load(Relaxed);
        let active = mine.active.load(Relaxed);
        // The tag is of this generation and no rollover took `active` away between the two reads.
        // A rollover that comes later finds the new word in `active` and sets it aside.
        if word >> TAG_BITS == self.generation.load(Relaxed) && active != 0 {
            mine.leaving.store(active, Relaxed);
            // Release pairs with `roll_over`: the next tag generation sees the tag that this CPU is leaving.
            // Lost without it: a tag rollover while a CPU changes its root.
            let taken = (mine.active).compare_exchange(active, word, Release, Relaxed);
            if taken.is_ok() {
                return (tag_of(word), false);
            }
            mine.leaving.store(0, Relaxed);
        }
        // Acquire pairs with the unlock in `acquire`: the dealer's words are as the last dealing CPU left them.
        // Lost without it: two CPUs need tags.
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            hw.relax();
        }
        let mut word = space.word.load(Relaxed);
        let mut rolled_over = false;
        // A rollover has taken the tag that was in use here, and set it aside.
        let loaded = match mine.active.load(Relaxed) {
            0 => mine.reserved.load(Relaxed),
            word => word,
        };
        if word >> TAG_BITS != self.generation.load(Relaxed) {
            (word, rolled_over) = self.deal(hw, word, running);
            space.word.store(word, Relaxed);
        }
        // Entries of the last tag generation are flushed before a tag of this one is loaded. [mutant
        // RolloverSkipsFlush]
        if mine.flush_pending.swap(0, Relaxed) != 0 {
            hw.invalidate(Invalidate::All);
        }
        mine.leaving.store(loaded, Relaxed);
        mine.active.store(word, Relaxed);
        // Release pairs with the lock in `acquire`: the next CPU sees the tags that were dealt, and deals them to no
        // other space.
        // Lost without it: two CPUs need tags.
        self.lock.store(0, Release);
        // Fence pairs with `broadcast::fence_before_tag`: the tag is visible before the first walk under it,
        // so the initiator of a broadcast reads this tag, or this CPU walks tables in which the entry is
        // cleared. On Arm a store and a later walk are not ordered by themselves.
        // Lost without it: `TagWalkedBeforeSeen`.
        hw.fence();
        (tag_of(word), rolled_over)
    }

    /// Deals a tag word of the current generation, under the lock. `old` is the space's last one.
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
        // takes no interrupt there, so the wait is short. Only the tag is compared: a generation that kept it for the
        // space did not update the word there. [mutant RolloverForgetsLeaving]
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
            let set_aside = running
                .all()
                .any(|cpu| u64::from(tag_of(cpu.reserved.load(Relaxed)).0) == next);
            // A tag that a CPU ran on when tags ran out stays its space's. [mutant RolloverForgetsReserved]
            if !set_aside {
                return Some(generation << TAG_BITS | next);
            }
        }
    }

    /// Begins a new tag generation, under the lock.
    fn roll_over(&self, generation: u64, running: &impl RunningTags<W>) {
        self.generation.store(generation, Relaxed);
        for cpu in running.all() {
            // A CPU that has not switched since the last rollover still runs on the tag that was set aside then.
            // Acquire pairs with `acquire`: if the CPU is about to load the tag set aside here, the later read of
            // `leaving` sees the tag that it leaves.
            // Lost without it: a tag rollover while a CPU changes its root.
            match cpu.active.swap(0, Acquire) {
                0 => {}
                word => cpu.reserved.store(word, Relaxed),
            }
            cpu.flush_pending.store(1, Relaxed);
        }
        self.next.store(1, Relaxed);
    }
}

/// Keeps the tag of `old` for its space if a CPU was running on it when the generation began. Writes the new word for
/// every CPU that set it aside; otherwise the tag could be dealt twice later.
fn keep_reserved<W: Word>(old: u64, new: u64, running: &impl RunningTags<W>) -> bool {
    let mut found = false;
    for cpu in running.all() {
        // Every CPU that runs the space: when tags run out again, the space is found by this word on each of them.
        // [mutants RolloverForgetsReserved, RolloverTellsOneAlone]
        if cpu.reserved.load(Relaxed) == old {
            cpu.reserved.store(new, Relaxed);
            found = true;
        }
    }
    found
}

#[cfg(test)]
#[allow(unsafe_code)] // A machine that does nothing.
mod tests {
    use super::*;
    use crate::cpu_set::{CpuId, CpuSet};
    use crate::hardware::NoBroadcasts;
    use crate::{Features, Frame, Tagging};
    use core::sync::atomic::AtomicU64;

    /// Two CPUs, of which the first leaves its old root once the second waits for it.
    struct Machine {
        running: [RunningTag<AtomicU64>; 2],
        waits: AtomicU64,
    }

    // SAFETY: there is no memory, and no translation of it.
    unsafe impl Hardware for Machine {
        type Word = AtomicU64;
        type Broadcasts = NoBroadcasts;
        fn this_cpu(&self) -> CpuId {
            CpuId(1)
        }
        fn features(&self) -> Features {
            Features {
                tagging: Tagging::Global { bits: 2 },
                broadcast: true,
                full_above: 33,
            }
        }
        fn fence(&self) {}
        fn invalidate(&self, _: Invalidate) {}
        unsafe fn load_root(&self, _: Frame, _: Tag, _: bool) {}
        fn unload_root(&self) {}
        fn interrupt(&self, _: &CpuSet) {}
        fn mask_interrupts(&self) -> bool {
            true
        }
        fn restore_interrupts(&self, _: bool) {}
        fn relax(&self) {
            self.waits.fetch_add(1, Relaxed);
            self.running[0].has_left();
        }
    }

    impl RunningTags<AtomicU64> for Machine {
        fn all<'t>(&'t self) -> impl Iterator<Item = &'t RunningTag<AtomicU64>>
        where
            AtomicU64: 't,
        {
            self.running.iter()
        }
    }

    /// Whether the first CPU takes its next tag under the lock or not: as long as it has not left its root, that root's
    /// space gets no other tag.
    #[test]
    fn a_space_keeps_its_tag_while_a_cpu_leaves_its_root() {
        for knows_its_tag in [false, true] {
            let hw = Machine {
                running: [RunningTag::new(), RunningTag::new()],
                waits: AtomicU64::new(0),
            };
            let tags = GlobalTags::new(3);
            let spaces = [(); 4].map(|()| SpaceTag::new());
            let load = |cpu: usize, space: usize| {
                let mine = &hw.running[cpu];
                tags.acquire(&hw, &spaces[space], mine, &hw).0
            };
            let switch = |cpu: usize, space: usize| {
                let tag = load(cpu, space);
                hw.running[cpu].has_left();
                tag
            };
            if knows_its_tag {
                switch(0, 1);
            }
            let old = switch(0, 0);
            switch(1, 2);
            // On its way to another root it walks below the old one.
            load(0, 1);
            switch(1, 3);
            assert_eq!(hw.waits.load(Relaxed), 0);
            assert_ne!(switch(1, 0), old);
            assert_eq!(hw.waits.load(Relaxed), 1, "{knows_its_tag}");
        }
    }
}
