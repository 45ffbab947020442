//! Tracks the possible contents of one CPU's translation caches, and the effect of invalidations on them.
//!
//! An invalidation of a range names one page per stride, and drops every entry that translates one of these pages
//! ([`PageRange::names`]). So naming any page of a large page drops it. But if base pages were reported as one large
//! stride, only the first of them is dropped. An invalidation may name the size of the entries to drop (Arm's level
//! hint, given for [`Scope::Leaf`]). Then entries of other sizes stay, and all stay if the range begins where no page
//! of that size can. INVLPG, INVLPGB and SFENCE.VMA name no size.
//!
//! Only [`Scope::Tables`] drops entries of walker caches: the pointers on the path to a named page. INVLPG drops all
//! pointers on Intel's processors, but not on AMD's with translation cache extensions, and INVLPGB doesn't either.
//!
//! An entry of a block determines the frames of all the block's pages, and a TLB may cache them as one. The set has an
//! element for each page, so an invalidation of one page leaves the others. Hardware may drop the whole block, but
//! needn't if it has kept the pages apart. As long as any entry of a block is present, a TLB can fill every page of the
//! block from it.
//!
//! For the hardware, clearing a pointer to a table ends nothing below it. A walker that has kept the pointer still
//! reads the table's present content. It even fills leaves that were written after the pointer was cleared, until an
//! invalidation with [`Scope::Tables`] reaches the pointer. The translations filled by then stay until they are
//! invalidated themselves. For the contract, however, the mapping ended with the pointer, and an old value that walkers
//! still read ended when it was overwritten. So each entry records two periods: the time until which it could be
//! *walked*, and the time in which the tables *led* to it from the root ([`Path`]).

use super::leaves::{Leaf, Leaves, Path};
use crate::oracle::Moment;
use crate::tables::{ACCESSED, PRESENT, TABLE, frame_of};
use quell::{Invalidation, PageRange, Scope};
use quell_vm::machine::Level;
use std::ops::Range;

/// The tag value of global entries.
pub(super) const GLOBAL_TAG: u16 = u16::MAX;

/// A pointer to a table that a walker may have kept, or the loaded root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    pub(super) tag: u16,
    /// The level of the table pointed to.
    pub(super) level: u8,
    pub(super) base: u64,
    pub(super) table: u32,
    /// The table that contained the pointer; for a root, the root itself.
    pub(super) via: u32,
    pub(super) root: u32,
    pub(super) written: Moment,
    /// Until when a walker could read it.
    pub(super) until: Moment,
    pub(super) path: Path,
}

impl Pointer {
    /// Returns the pages that the table spans.
    pub(super) fn pages(&self) -> Range<u64> {
        self.base..self.base + Level(self.level + 1).pages()
    }
}

/// A past value of a table word. Walkers that lag may still read it.
#[derive(Clone, Copy)]
pub(super) struct OverwrittenEntry {
    pub(super) table: u32,
    pub(super) index: usize,
    pub(super) old: u64,
    /// When it was written.
    pub(super) written: Moment,
    /// When it was overwritten.
    pub(super) at: Moment,
}

#[derive(Clone, Default)]
pub(super) struct Tlb {
    pub(super) tag: u16,
    pub(super) root: Option<u32>,
    pub(super) pointers: Vec<Pointer>,
    pub(super) leaves: Leaves,
    /// The latest moment at which an entry of one of the leaves was written.
    pub(super) newest: Moment,
}

/// Returns whether invalidating a range under the leaf's tag drops the leaf. If `hinted`, the invalidation names the
/// size of the entries to drop.
fn reaches(range: PageRange, leaf: &Leaf, hinted: bool) -> bool {
    let stride = range.stride.pages();
    let told = !hinted || leaf.pages() == stride && range.start.0.is_multiple_of(stride);
    told && range.names(quell::Page(leaf.page), leaf.pages())
}

/// Returns whether `what` names entries under this tag while `loaded` is the loaded tag ([`Tlb::invalidate`]).
fn is_tagged(what: Invalidation, tag: u16, loaded: u16, everywhere: bool) -> bool {
    match what {
        Invalidation::Everything => true,
        Invalidation::All => tag != GLOBAL_TAG,
        Invalidation::Tag(named) | Invalidation::Range { tag: named, .. } => tag == named.0,
        Invalidation::Kernel { .. } => everywhere || tag == loaded || tag == GLOBAL_TAG,
    }
}

/// Returns the range of an invalidation, or `None` for everything, and its scope.
fn reach(what: Invalidation) -> (Option<PageRange>, Scope) {
    match what {
        Invalidation::Range { range, scope, .. } | Invalidation::Kernel { range, scope } => {
            (Some(range), scope)
        }
        Invalidation::Tag(_) | Invalidation::All | Invalidation::Everything => {
            (None, Scope::Tables)
        }
    }
}

/// Returns whether `what` names this leaf ([`Tlb::invalidate`]).
fn is_named(
    what: Invalidation,
    leaf: &Leaf,
    loaded: u16,
    (hints, everywhere): (bool, bool),
) -> bool {
    let (range, scope) = reach(what);
    is_tagged(what, leaf.tag, loaded, everywhere)
        && range.is_none_or(|range| reaches(range, leaf, hints && scope == Scope::Leaf))
}

impl Tlb {
    /// Returns whether an invalidation issued at `sent` drops this leaf when it takes effect.
    pub(super) fn will_lose(
        &self,
        leaf: &Leaf,
        (what, sent): (Invalidation, Moment),
        kind: (bool, bool),
    ) -> bool {
        leaf.until.min(leaf.path.cut) <= sent && is_named(what, leaf, self.tag, kind)
    }

    /// Adds a leaf that can be walked now.
    #[inline]
    pub(super) fn fill(&mut self, leaf: Leaf) {
        let what = |l: &Leaf| {
            let of = (l.tag, l.level, l.page, l.from);
            (of, l.word, l.via, l.root, l.written)
        };
        if leaf.written <= self.newest {
            let mut from = 0;
            while let Some(known) = self.leaves.next_beside(leaf.place(), &mut from) {
                if what(known) == what(&leaf) {
                    known.until = Moment::MAX;
                    known.path.join(leaf.path);
                    return;
                }
            }
        }
        self.newest = self.newest.max(leaf.written);
        self.leaves.push(leaf);
    }

    /// Forgets the entries under a tag.
    pub(super) fn drop_tag(&mut self, tag: u16) {
        self.pointers.retain(|p| p.tag != tag);
        self.leaves.retain(|l| l.tag != tag);
    }

    /// Drops the entries that `what` covers and that couldn't be walked any more at `sent`. With `hints`, invalidations
    /// of leaf entries name their size. If tags mean the same `everywhere`, invalidations of the kernel's half reach
    /// every tag.
    pub(super) fn invalidate(
        &mut self,
        what: Invalidation,
        sent: Moment,
        (hints, everywhere): (bool, bool),
    ) {
        let loaded = self.tag;
        let (range, scope) = reach(what);
        if scope == Scope::Tables {
            let goes = |p: &Pointer| {
                let pages = Level(p.level + 1).pages();
                p.until <= sent
                    && is_tagged(what, p.tag, loaded, everywhere)
                    && range.is_none_or(|range| range.names(quell::Page(p.base), pages))
            };
            self.pointers.retain(|p| !goes(p));
            self.end_orphans(sent);
            self.pointers.retain(|p| !goes(p));
        }
        self.leaves.retain(|l| l.until > sent || !is_named(what, l, loaded, (hints, everywhere)));
    }

    /// Records that the tables no longer lead through an entry. `unseen` is the moment at which walkers stopped seeing
    /// it, if they have.
    pub(super) fn end(&mut self, gone: &OverwrittenEntry, unseen: Option<Moment>) {
        let place = |via: u32, level: u8, page: u64| {
            via == gone.table && Level(level).index(quell::Page(page)) == gone.index
        };
        if gone.old & PRESENT == 0 {
            return;
        }
        if gone.old & TABLE != 0 {
            for at in 0..self.pointers.len() {
                let p = &mut self.pointers[at];
                if p.until == Moment::MAX
                    && p.table == frame_of(gone.old)
                    && p.written == gone.written
                    && place(p.via, p.level + 1, p.base)
                {
                    p.until = unseen.unwrap_or(p.until);
                    self.cut(at, gone.at);
                }
            }
        } else {
            let (of, mut from) = ((gone.table, gone.index), 0);
            while let Some(leaf) = self.leaves.next_beside(of, &mut from) {
                // A leaf that is kept under a tag that isn't loaded has ended earlier.
                let stands = leaf.until == Moment::MAX || leaf.path.cut == Moment::MAX;
                if leaf.written == gone.written
                    && stands
                    && (leaf.entry() ^ gone.old) & !ACCESSED == 0
                    && place(leaf.via, leaf.level, leaf.from)
                {
                    leaf.until = leaf.until.min(unseen.unwrap_or(leaf.until));
                    leaf.path.cut = leaf.path.cut.min(gone.at);
                } else if leaf.page != leaf.from
                    && place(leaf.via, leaf.level, leaf.page)
                    && frame_of(leaf.word) == frame_of(gone.old)
                {
                    // The page's own entry is cleared, but another entry of its block is present: walkers may still
                    // fill the page from that one.
                    leaf.path.cut = leaf.path.cut.min(gone.at);
                }
            }
        }
    }

    /// Records that the tables no longer lead through a pointer, nor to anything below it.
    fn cut(&mut self, at: usize, now: Moment) {
        let pointer = &mut self.pointers[at];
        if pointer.path.cut != Moment::MAX {
            return;
        }
        pointer.path.cut = now;
        let pointer = *pointer;
        let below = |tag: u16, root: u32, via: u32, page: u64| {
            (root, via) == (pointer.root, pointer.table)
                && (tag == pointer.tag || tag == GLOBAL_TAG)
                && pointer.pages().contains(&page)
        };
        for leaf in self.leaves.iter_mut() {
            if below(leaf.tag, leaf.root, leaf.via, leaf.page) {
                leaf.path.cut = leaf.path.cut.min(now);
            }
        }
        for at in 0..self.pointers.len() {
            let p = self.pointers[at];
            if p.via != p.table && below(p.tag, p.root, p.via, p.base) {
                self.cut(at, now);
            }
        }
    }

    /// Ends the entries that were reached through a removed pointer.
    fn end_orphans(&mut self, now: Moment) {
        let leads = |pointers: &[Pointer], tag: u16, root: u32, via: u32, page: u64| {
            let mut kept = pointers.iter();
            kept.any(|q| {
                (q.root, q.table) == (root, via)
                    && (q.tag == tag || tag == GLOBAL_TAG)
                    && q.pages().contains(&page)
            })
        };
        while let Some(at) = self.pointers.iter().position(|p| {
            p.until == Moment::MAX
                && p.via != p.table
                && !leads(&self.pointers, p.tag, p.root, p.via, p.base)
        }) {
            self.pointers[at].until = now;
        }
        for leaf in self.leaves.iter_mut() {
            if leaf.until == Moment::MAX
                && !leads(&self.pointers, leaf.tag, leaf.root, leaf.via, leaf.page)
            {
                leaf.until = now;
            }
        }
    }
}

#[cfg(test)]
mod tests;
