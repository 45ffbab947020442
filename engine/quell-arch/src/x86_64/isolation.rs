//! Page-table isolation: a space has a root and a tag for the kernel, and a root and a tag for user mode.
//!
//! The kernel runs under a root that maps everything, user mode under a root that maps only the entry code of the
//! kernel. Both halves of a space have entries of their own in the TLB, under two PCIDs: the tag that the engine knows,
//! and the same with bit 11 set. When the engine invalidates under the first, the user's half must be invalidated, too,
//! but not at once: nothing is translated under the user's tag before the CPU returns to user mode, and the load of CR3
//! for that can flush it ([`UserHalves::cr3`]). So an invalidation only notes which user's halves are behind.
//!
//! A [`UserHalves`] is one CPU's. The kernel's [`Hardware`](quell::Hardware) calls
//! [`UserHalves::invalidated`] after it has invalidated the kernel's half, and [`UserHalves::loaded`] after it has
//! loaded a root; every way back to user mode, from NMIs too, loads what [`UserHalves::cr3`] says. The
//! contract then holds for user mode as it does without isolation: for programs a request is *flushed* as soon as it is
//! noted, because they run only after that load.
//!
//! # What this does not guarantee
//!
//! This module says nothing of kernel code that accesses user memory: that runs under the kernel's tag, which the
//! engine flushes. A processor without PCIDs needs none of it: each load of CR3 flushes. Broadcasts (INVLPGB) must name
//! both tags.

use super::tlb;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{Frame, Invalidate, Tag};

/// The bit of a user's tag.
const USER: u16 = 1 << 11;

/// Returns the tag of the user's half that belongs to the space's own `tag`.
///
/// # Panics
/// If the tag is the kernel's own, or beyond [`UserHalves::TAGS`].
#[inline]
pub const fn user_tag(tag: Tag) -> Tag {
    assert!(
        tag.0 != 0 && tag.0 <= UserHalves::TAGS,
        "no tag that the engine lends where user mode has tags of its own"
    );
    Tag(tag.0 | USER)
}

/// The user's halves that one CPU must flush before it uses them again.
///
/// Only that CPU uses this value: with interrupts masked, or in a handler that adds marks and removes none.
#[derive(Debug)]
pub struct UserHalves {
    /// A bit for each tag.
    behind: AtomicU64,
}

impl Default for UserHalves {
    fn default() -> Self {
        Self::new()
    }
}

impl UserHalves {
    /// The most tags that the engine may lend: `Tagging::PerCpu { count }` must not exceed it.
    pub const TAGS: u16 = 63;

    /// Makes the state of a CPU that has used no tag yet: every user's half must be flushed.
    pub const fn new() -> Self {
        UserHalves {
            behind: AtomicU64::new(u64::MAX),
        }
    }

    /// Returns one bit for each tag whose user's half must be flushed. Machines in software save and compare it.
    #[doc(hidden)]
    pub fn to_bits(&self) -> u64 {
        self.behind.load(Relaxed)
    }

    /// Restores a value saved by [`UserHalves::to_bits`].
    #[doc(hidden)]
    pub const fn from_bits(behind: u64) -> Self {
        UserHalves {
            behind: AtomicU64::new(behind),
        }
    }

    fn mark(&self, tags: u64) {
        // In one step, because an NMI handler may mark in the middle.
        self.behind.fetch_or(tags, Relaxed);
    }

    /// Notes that the kernel's half was invalidated, so the user's half must be flushed.
    #[inline]
    pub fn invalidated(&self, what: Invalidate) {
        self.mark(match what {
            Invalidate::Range { tag, .. } | Invalidate::Tag(tag) => 1 << (tag.0 & 63),
            // The way into the kernel is mapped in every user's half.
            Invalidate::All | Invalidate::Everything | Invalidate::Kernel { .. } => u64::MAX,
        });
    }

    /// Notes that a root was loaded under `tag`. `keep` says whether the tag's entries survived.
    #[inline]
    pub fn loaded(&self, tag: Tag, keep: bool) {
        if !keep {
            self.mark(1 << (tag.0 & 63));
        }
    }

    /// Returns the CR3 value for the return to user mode under `tag`.
    ///
    /// It names the user's root, and keeps its entries unless they must be flushed. The caller loads it before it calls
    /// any other method of this value.
    ///
    /// An entry that an NMI handler marks between this call and the load is flushed on the way back to user mode after
    /// this one: a handler that invalidates an entry on which user mode relies does so for the user's half itself.
    ///
    /// # Panics
    /// As [`user_tag`] and [`tlb::cr3`].
    #[inline]
    pub fn cr3(&self, root: Frame, tag: Tag) -> u64 {
        let user = user_tag(tag);
        let (held, bit) = (self.behind.load(Relaxed), 1 << tag.0);
        if held & bit != 0 {
            self.behind.fetch_and(!bit, Relaxed);
        }
        tlb::cr3(root, user, held & bit == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell::{Page, PageRange, Scope};
    use rand::RngExt;
    use rand_pcg::Pcg64;
    use std::collections::HashMap;
    use std::vec;
    use std::vec::Vec;

    const TAGS: u16 = 4;
    const PAGES: u64 = 6;
    const KEEP: u64 = 1 << 63;

    /// A CPU: what it holds of user mode's pages, each with the version of the entry that it was filled from.
    #[derive(Default)]
    struct Cpu {
        halves: UserHalves,
        held: HashMap<(u16, u64), u64>,
    }

    impl Cpu {
        /// Back to user mode under the tag; what a program reads of every page.
        fn run(&mut self, tag: Tag, tables: &[u64]) -> Vec<u64> {
            let value = self.halves.cr3(Frame(1), tag);
            let pcid = value as u16 & 0xfff;
            assert_eq!(pcid, tag.0 | USER);
            if value & KEEP == 0 {
                self.held.retain(|&(of, _), _| of != pcid);
            }
            let read = |page| {
                *self
                    .held
                    .entry((pcid, page))
                    .or_insert(tables[page as usize])
            };
            (0..PAGES).map(read).collect()
        }
    }

    /// `notes` says whether what was invalidated is noted; the count of stale reads.
    fn stale(notes: bool) -> u64 {
        let mut dice = Pcg64::new(7, 0);
        let mut cpu = Cpu::default();
        let mut tables = vec![vec![0; PAGES as usize]; usize::from(TAGS) + 1];
        let mut stale = 0;
        for version in 1..4000 {
            let tag = dice.random_range(1..=TAGS);
            let space = usize::from(tag);
            let page = dice.random_range(0..PAGES);
            let range = PageRange::base(Page(page), 1);
            let (what, changed) = match dice.random_range(0..5) {
                0 => (Some(Invalidate::Tag(Tag(tag))), 0..PAGES),
                1 => (Some(Invalidate::All), 0..PAGES),
                2 => (None, 0..PAGES),
                _ => {
                    let (tag, scope) = (Tag(tag), Scope::Leaf);
                    let what = Invalidate::Range { tag, range, scope };
                    (Some(what), page..page + 1)
                }
            };
            changed.for_each(|page| tables[space][page as usize] = version);
            if notes {
                match what {
                    Some(what) => cpu.halves.invalidated(what),
                    // Another space takes the tag over.
                    None => cpu.halves.loaded(Tag(tag), false),
                }
            }
            let runs = dice.random_range(1..=TAGS);
            let tables = &tables[usize::from(runs)];
            stale += u64::from(cpu.run(Tag(runs), tables) != *tables);
        }
        stale
    }

    #[test]
    fn programs_read_nothing_that_was_invalidated() {
        assert_eq!(stale(true), 0);
        assert!(stale(false) > 0, "there is nothing to see");
    }

    #[test]
    fn what_is_not_behind_is_kept() {
        let halves = UserHalves::new();
        let kept = |tag| halves.cr3(Frame(1), Tag(tag)) & KEEP != 0;
        assert!(!kept(1) && !kept(2), "nothing is known of either at first");
        assert!(kept(1) && kept(2));
        halves.invalidated(Invalidate::Tag(Tag(1)));
        halves.loaded(Tag(2), true);
        assert!(kept(2) && !kept(1) && kept(1));
        halves.loaded(Tag(2), false);
        assert!(kept(1) && !kept(2));
        halves.invalidated(Invalidate::Everything);
        assert!(!kept(1) && !kept(2));
    }

    #[test]
    #[should_panic(expected = "tags of its own")]
    fn tags_without_a_half_of_their_own_are_refused() {
        user_tag(Tag(UserHalves::TAGS + 1));
    }
}
