//! What the translation caches of one CPU may hold, and what an invalidation takes away.
//!
//! An invalidation of a range names one page per stride, and takes away what translates one of these
//! pages ([`PageRange::names`]): a large page goes with any of its pages, base pages that were reported
//! as one large stride stay, but for the first. Where an invalidation names the size of what it is to
//! drop (Arm's level hint, given for [`Scope::Leaf`]), entries of other sizes stay altogether, and
//! everything does if the range does not begin where such a page can. INVLPG, INVLPGB and SFENCE.VMA
//! name no size. Of the walker caches the pointers on the path to a named page go, for
//! [`Scope::Tables`] alone. INVLPG drops all of them on Intel's processors; on AMD's, with translation
//! cache extensions or INVLPGB, it does not.
//!
//! An entry that is one of a block says where every page of the block is, and a TLB may keep that for all of them as
//! one. The set has an element for each page, so an invalidation of one page leaves the others: hardware may drop the
//! whole block, and need not, where it has kept the pages apart. As long as any entry of a block stands, it can be
//! filled for every page of the block.
//!
//! Clearing a pointer to a table ends nothing below it for the hardware: a walker that has kept the pointer
//! still reads what the table says now, and fills leaves through it that were written after the
//! pointer had gone, until an invalidation with [`Scope::Tables`] reaches the pointer. The translations
//! that were filled stay even then, until they are invalidated themselves. For the contract the
//! mapping ended with the pointer all the same, and an old value that walkers still read ended when it was
//! overwritten: so each entry knows both until when it could be *walked*, and since and until when
//! the tables *led* to it, from the root on ([`Path`]).

use super::leaves::{Leaf, Leaves, Path};
use crate::oracle::Moment;
use crate::tables::{ACCESSED, PRESENT, TABLE, frame_of};
use quell::{Invalidate, PageRange, Scope};
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
    /// The table that held the pointer; for a root, the root itself.
    pub(super) via: u32,
    pub(super) root: u32,
    pub(super) written: Moment,
    /// Until when a walker could read it.
    pub(super) until: Moment,
    pub(super) path: Path,
}

impl Pointer {
    /// The pages that the table spans.
    pub(super) fn pages(&self) -> Range<u64> {
        self.base..self.base + Level(self.level + 1).pages()
    }
}

/// A value that a table word had: walkers may still read it, if they lag.
#[derive(Clone, Copy)]
pub(super) struct Gone {
    pub(super) table: u32,
    pub(super) index: usize,
    pub(super) old: u64,
    /// When it was written.
    pub(super) written: Moment,
    /// When another one took its place.
    pub(super) at: Moment,
}

#[derive(Clone, Default)]
pub(super) struct Tlb {
    pub(super) tag: u16,
    pub(super) root: Option<u32>,
    pub(super) pointers: Vec<Pointer>,
    pub(super) leaves: Leaves,
    /// No entry that a leaf came from was written after this moment.
    pub(super) newest: Moment,
}

/// Returns whether invalidating a range under the leaf's tag drops the leaf; with `hinted` the invalidations name the
/// size of entries to drop.
fn reaches(range: PageRange, leaf: &Leaf, hinted: bool) -> bool {
    let stride = range.stride.pages();
    let told = !hinted || leaf.pages() == stride && range.start.0.is_multiple_of(stride);
    told && range.names(quell::Page(leaf.page), leaf.pages())
}

/// Returns whether `what` names entries under this tag, with `loaded` as the loaded tag; see [`Tlb::invalidate`].
fn is_tagged(what: Invalidate, tag: u16, loaded: u16, everywhere: bool) -> bool {
    match what {
        Invalidate::Everything => true,
        Invalidate::All => tag != GLOBAL_TAG,
        Invalidate::Tag(named) | Invalidate::Range { tag: named, .. } => tag == named.0,
        Invalidate::Kernel { .. } => everywhere || tag == loaded || tag == GLOBAL_TAG,
    }
}

/// The range that is invalidated, if not all, and up to where.
fn reach(what: Invalidate) -> (Option<PageRange>, Scope) {
    match what {
        Invalidate::Range { range, scope, .. } | Invalidate::Kernel { range, scope } => {
            (Some(range), scope)
        }
        Invalidate::Tag(_) | Invalidate::All | Invalidate::Everything => (None, Scope::Tables),
    }
}

/// Returns whether `what` names this leaf; see [`Tlb::invalidate`].
fn is_named(what: Invalidate, leaf: &Leaf, loaded: u16, (hints, everywhere): (bool, bool)) -> bool {
    let (range, scope) = reach(what);
    is_tagged(what, leaf.tag, loaded, everywhere)
        && range.is_none_or(|range| reaches(range, leaf, hints && scope == Scope::Leaf))
}

impl Tlb {
    /// Returns whether an invalidation issued at `sent` drops this leaf when it takes effect.
    pub(super) fn will_lose(
        &self,
        leaf: &Leaf,
        (what, sent): (Invalidate, Moment),
        kind: (bool, bool),
    ) -> bool {
        leaf.until.min(leaf.path.cut) <= sent && is_named(what, leaf, self.tag, kind)
    }

    /// A leaf can be walked now: holds it.
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

    /// Drops the entries that `what` covers and that could not be walked any more at `sent`. With `hints`,
    /// invalidations of leaf entries name their size. If tags mean the same `everywhere`, invalidations of the
    /// kernel's half reach every tag.
    pub(super) fn invalidate(
        &mut self,
        what: Invalidate,
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
        self.leaves
            .retain(|l| l.until > sent || !is_named(what, l, loaded, (hints, everywhere)));
    }

    /// The tables do not lead through an entry any more. `unseen` is when walkers stopped to see it, if they
    /// have.
    pub(super) fn end(&mut self, gone: &Gone, unseen: Option<Moment>) {
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
                // One that is kept under a tag that is not loaded was ended before.
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
                    // The page's entry is gone, and another entry of its block is present: walkers may still fill the
                    // page from that.
                    leaf.path.cut = leaf.path.cut.min(gone.at);
                }
            }
        }
    }

    /// Records that the tables do not lead through a pointer any more, nor to anything below it.
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

    /// Ends entries that were reached through a removed pointer.
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
