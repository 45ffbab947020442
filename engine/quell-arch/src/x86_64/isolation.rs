//! Flushes user-mode translations under page-table isolation (Linux' PTI).
//!
//! With isolation, each address space has two roots and two PCIDs, one for each *half*. The kernel's half maps
//! everything. The user's half maps user memory and the kernel's entry code, and is loaded only in user mode. The
//! kernel's half has the engine's tag as its PCID; the user's half has the same tag with bit 11 set.
//!
//! When the engine invalidates pages under its tag, the user's half must be invalidated too. That can wait: the CPU
//! doesn't translate under the user's PCID before it returns to user mode. And the load of CR3 for that return can
//! flush the PCID. So an invalidation only marks the user's half as stale, and [`UserHalves::cr3`] returns a value that
//! flushes stale halves.
//!
//! Each CPU has one [`UserHalves`]. The kernel's implementation of [`Hardware`](quell::Hardware) calls
//! [`UserHalves::invalidated`] after each invalidation, and [`UserHalves::loaded`] after each load of a root. Every
//! return to user mode, also from an NMI, loads the value of [`UserHalves::cr3`]. A flush then counts as complete for
//! user mode as soon as it's recorded here: user code runs only after that load.
//!
//! # Limits
//!
//! Kernel code that accesses user memory runs under the kernel's half, which the engine flushes. A processor without
//! PCIDs needs no [`UserHalves`]: each load of CR3 flushes. Broadcasts (INVLPGB) must name both tags.

use super::tlb;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use quell::{Frame, Invalidation, Tag};

/// The bit that distinguishes a user's tag.
const USER: u16 = 1 << 11;

/// Returns the tag of a space's user half; `tag` is the one from the engine.
///
/// # Panics
/// If the tag is 0 (the kernel's) or above [`UserHalves::TAGS`].
#[inline]
pub const fn user_tag(tag: Tag) -> Tag {
    assert!(
        tag.0 != 0 && tag.0 <= UserHalves::TAGS,
        "no tag that the engine lends where user mode has tags of its own"
    );
    Tag(tag.0 | USER)
}

/// One CPU's record of the user halves that it must flush before their next use.
///
/// Only that CPU uses the record, with interrupts masked. An NMI handler may call [`UserHalves::invalidated`] at any
/// time.
///
/// # Examples
///
/// ```
/// use quell::{Frame, Invalidation, Tag};
/// use quell_arch::x86_64::isolation::{UserHalves, user_tag};
/// use quell_arch::x86_64::tlb::cr3;
/// let (halves, root, tag) = (UserHalves::new(), Frame(42), Tag(3));
/// // The first return to user mode flushes, the next one keeps the entries.
/// assert_eq!(halves.cr3(root, tag), cr3(root, user_tag(tag), false));
/// assert_eq!(halves.cr3(root, tag), cr3(root, user_tag(tag), true));
/// halves.invalidated(Invalidation::Tag(tag)); // the kernel's half was
/// assert_eq!(halves.cr3(root, tag), cr3(root, user_tag(tag), false));
/// ```
#[derive(Debug)]
pub struct UserHalves {
    /// A bit for each tag, set if the user's half is out of date.
    behind: AtomicU64,
}

impl Default for UserHalves {
    fn default() -> Self {
        Self::new()
    }
}

impl UserHalves {
    /// The highest tag that the engine may use: `Tagging::PerCpu { count }` must not exceed it.
    pub const TAGS: u16 = 63;

    /// Creates the record of a CPU without used tags: every user half must be flushed.
    pub const fn new() -> Self {
        UserHalves { behind: AtomicU64::new(u64::MAX) }
    }

    /// Returns one bit for each tag, set if the user half must be flushed.
    ///
    /// A simulated machine saves this value and compares it.
    #[doc(hidden)]
    pub fn to_bits(&self) -> u64 {
        self.behind.load(Relaxed)
    }

    /// Restores a value saved by [`UserHalves::to_bits`].
    #[doc(hidden)]
    pub const fn from_bits(behind: u64) -> Self {
        UserHalves { behind: AtomicU64::new(behind) }
    }

    fn mark(&self, tags: u64) {
        // An atomic operation, because an NMI handler may interrupt us and add a mark.
        self.behind.fetch_or(tags, Relaxed);
    }

    /// Records an invalidation of the kernel's half. The user's half is flushed before its next use.
    ///
    /// Call it after each invalidation that the engine requests, with the same argument.
    #[inline]
    pub fn invalidated(&self, what: Invalidation) {
        self.mark(match what {
            Invalidation::Range { tag, .. } | Invalidation::Tag(tag) => 1 << (tag.0 & 63),
            // Every user's half maps the kernel's entry code.
            Invalidation::All | Invalidation::Everything | Invalidation::Kernel { .. } => u64::MAX,
        });
    }

    /// Records that the kernel loaded a root under `tag`.
    ///
    /// `keep` is set if the load kept the tag's TLB entries.
    #[inline]
    pub fn loaded(&self, tag: Tag, keep: bool) {
        if !keep {
            self.mark(1 << (tag.0 & 63));
        }
    }

    /// Returns the CR3 value for the return to user mode under `tag`.
    ///
    /// The value contains the user's root. If the user half is marked as stale, loading the value flushes the user's
    /// PCID, and this call removes the mark. Load the value before you call another method of this record.
    ///
    /// An NMI handler may add a mark between this call and the load of CR3. That mark takes effect only at the next
    /// return to user mode. So if an NMI handler invalidates an entry on which user mode relies, it must invalidate the
    /// entry in the user's half itself.
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

    /// A CPU, with its TLB entries of user mode's pages: each has the version of the entry that it was filled from.
    #[derive(Default)]
    struct Cpu {
        halves: UserHalves,
        held: HashMap<(u16, u64), u64>,
    }

    impl Cpu {
        /// Returns to user mode under the tag, and returns the version that a program reads of every page.
        fn run(&mut self, tag: Tag, tables: &[u64]) -> Vec<u64> {
            let value = self.halves.cr3(Frame(1), tag);
            let pcid = value as u16 & 0xfff;
            assert_eq!(pcid, tag.0 | USER);
            if value & KEEP == 0 {
                self.held.retain(|&(of, _), _| of != pcid);
            }
            let read = |page| *self.held.entry((pcid, page)).or_insert(tables[page as usize]);
            (0..PAGES).map(read).collect()
        }
    }

    /// Returns the number of stale reads. `notes` is set if invalidations are recorded.
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
                0 => (Some(Invalidation::Tag(Tag(tag))), 0..PAGES),
                1 => (Some(Invalidation::All), 0..PAGES),
                2 => (None, 0..PAGES),
                _ => {
                    let (tag, scope) = (Tag(tag), Scope::Leaf);
                    let what = Invalidation::Range { tag, range, scope };
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
        halves.invalidated(Invalidation::Tag(Tag(1)));
        halves.loaded(Tag(2), true);
        assert!(kept(2) && !kept(1) && kept(1));
        halves.loaded(Tag(2), false);
        assert!(kept(1) && !kept(2));
        let (range, scope) = (PageRange::base(Page(5), 1), Scope::Leaf);
        halves.invalidated(Invalidation::Range { tag: Tag(1), range, scope });
        assert!(kept(2) && !kept(1));
        for all in
            [Invalidation::All, Invalidation::Everything, Invalidation::Kernel { range, scope }]
        {
            halves.invalidated(all);
            assert!(!kept(1) && !kept(2), "{all:?}");
        }
    }
}
