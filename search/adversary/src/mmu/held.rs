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

use crate::oracle::{Moment, UsedTranslation};
use crate::tables::{
    ACCESSED, BLOCK, DIRTY, EXECUTABLE, FRAME_SHIFT, PRESENT, TABLE, USER, WRITABLE, frame_of,
};
use quell::{Invalidation, PageRange, Scope};
use quell_vm::machine::{Level, TABLE_WORDS};
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
    pub(super) written: Moment,
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

/// The time during which the tables in memory led from the root to an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// When the entry was written. If the path had been cut before, when the last pointer was written that was still
    /// connected to the root.
    pub(super) since: Moment,
    /// When the path was cut; [`Moment::MAX`] if it wasn't.
    pub(super) cut: Moment,
}

impl Path {
    /// Extends the path to an entry that was `written` at its end.
    pub(super) fn to(self, written: Moment) -> Path {
        let since = if written < self.cut { written } else { self.since };
        Path { since, ..self }
    }

    /// Adds a second path to the entry; the path that lasts longer counts.
    pub(super) fn join(&mut self, other: Path) {
        if other.cut >= self.cut {
            *self = other;
        }
    }
}

/// A translation that a TLB may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(super) tag: u16,
    pub(super) level: u8,
    pub(super) page: u64,
    /// The first page of the entry from which it was filled. In a block, that may be the entry of another page.
    pub(super) from: u64,
    pub(crate) word: u64,
    pub(super) via: u32,
    pub(super) root: u32,
    pub(super) written: Moment,
    /// Until when a walker could find it.
    pub(crate) until: Moment,
    pub(super) path: Path,
}

impl Leaf {
    /// Creates an entry of a page that no walk has filled.
    pub(super) fn junk(tag: u16, page: u64, word: u64, (via, root): (u32, u32)) -> Self {
        let path = Path { since: 0, cut: 0 };
        let (level, from, written, until) = (0, page, 0, 0);
        Leaf { tag, level, page, from, word, via, root, written, until, path }
    }

    pub(super) fn pages(&self) -> u64 {
        Level(self.level).pages()
    }

    pub(super) fn covers(&self, page: u64) -> bool {
        page.wrapping_sub(self.page) < self.pages()
    }

    /// Returns the pages that it maps.
    pub(crate) fn pages_of(&self) -> Range<u64> {
        self.page..self.page + self.pages()
    }

    /// Returns the same translation for another page of its block.
    pub(super) fn of_block(self, page: u64) -> Self {
        let by = page.wrapping_sub(self.page) << FRAME_SHIFT;
        let word = self.word.wrapping_add(by);
        Leaf { page, word, ..self }
    }

    /// Returns the entry from which it was filled.
    pub(super) fn entry(&self) -> u64 {
        self.of_block(self.from).word
    }

    /// Returns the page that maps a frame, if one does.
    pub(crate) fn page_of(&self, frame: u32) -> Option<u64> {
        let page = self.page + u64::from(frame.checked_sub(frame_of(self.word))?);
        self.covers(page).then_some(page)
    }

    /// Returns the translation of an access to `page` through it, for the oracle.
    pub(crate) fn used(&self, page: u64) -> UsedTranslation {
        UsedTranslation {
            root: self.root,
            page,
            frame: frame_of(self.word) + (page - self.page) as u32,
            written: self.written,
            since: self.path.since,
            until: self.path.cut,
        }
    }

    /// Returns whether it is as good as the walk `live` of a page from a root: it leads to the same frame and grants no
    /// more. Dirty is a right, too: a store through a dirty entry doesn't change the tables.
    pub(crate) fn is_fresh(&self, live: &Leaf, root: u32, page: u64) -> bool {
        const GRANTS: u64 = WRITABLE | USER | EXECUTABLE | DIRTY;
        live.used(page).frame == self.used(page).frame
            && self.root == root
            && self.word & !live.word & GRANTS == 0
    }

    /// Returns the moment at which its entry was written.
    pub(crate) fn written(&self) -> Moment {
        self.written
    }

    /// Returns the place of its entry in the tables.
    pub(crate) fn place(&self) -> (u32, usize) {
        (self.via, Level(self.level).index(quell::Page(self.from)))
    }
}

/// The translations that one TLB may hold, in the order of their fills.
///
/// The TLB of a program with large pages holds hundreds of them, and each changed entry needs those that were filled
/// from it. So the places of their entries are kept beside them as numbers, of which the host compares many at once.
#[derive(Default)]
pub(super) struct Leaves {
    leaves: Vec<Leaf>,
    /// The result of [`block_of`] for each leaf's entry.
    blocks: Vec<u32>,
}

/// The number of comparisons between two checks of their results.
const AT_ONCE: usize = 16;

/// Returns the block of a table's entry. It doesn't matter whether the entry is marked: a leaf of a block may have been
/// filled from any of its entries.
fn block_of((table, index): (u32, usize)) -> u32 {
    (table * TABLE_WORDS as u32 + index as u32) / BLOCK as u32
}

impl Leaves {
    pub(super) fn clear(&mut self) {
        self.leaves.clear();
        self.blocks.clear();
    }

    pub(super) fn push(&mut self, leaf: Leaf) {
        self.leaves.push(leaf);
        self.blocks.push(block_of(leaf.place()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter()
    }

    /// Iterates for changes that leave the place of each leaf's entry as it is.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Leaf> {
        self.leaves.iter_mut()
    }

    /// Returns the next translation whose entry is in the same block as `place`. It skips the first `from`
    /// translations, and then sets `from` to the number of translations up to the result.
    pub(super) fn next_beside(
        &mut self,
        place: (u32, usize),
        from: &mut usize,
    ) -> Option<&mut Leaf> {
        let block = block_of(place);
        // We compare a whole piece without an early exit, so that the compiler can vectorise the loop.
        let hit =
            |piece: &[u32; AT_ONCE]| piece.iter().fold(false, |any, one| any | (*one == block));
        let (pieces, _) = self.blocks[*from..].as_chunks();
        *from += AT_ONCE * pieces.iter().take_while(|piece| !hit(piece)).count();
        let at = self.blocks[*from..].iter().position(|one| *one == block)?;
        *from += at + 1;
        self.leaves.get_mut(*from - 1)
    }

    pub(super) fn retain(&mut self, keeps: impl Fn(&Leaf) -> bool) {
        let before = self.leaves.len();
        self.leaves.retain(keeps);
        if self.leaves.len() < before {
            self.blocks.clear();
            let blocks = self.leaves.iter().map(|leaf| block_of(leaf.place()));
            self.blocks.extend(blocks);
        }
    }
}

impl Extend<Leaf> for Leaves {
    fn extend<I: IntoIterator<Item = Leaf>>(&mut self, leaves: I) {
        leaves.into_iter().for_each(|leaf| self.push(leaf));
    }
}

impl Clone for Leaves {
    fn clone(&self) -> Self {
        Leaves { leaves: self.leaves.clone(), blocks: self.blocks.clone() }
    }

    /// Clones into the existing memory.
    fn clone_from(&mut self, other: &Self) {
        self.leaves.clone_from(&other.leaves);
        self.blocks.clone_from(&other.blocks);
    }
}

/// The state of all tables besides their words. A run uses few of the tables that it could have, so the others take no
/// memory.
pub(super) struct TableStates {
    /// The tables with words that may not be zero, as bits.
    used: Box<[u64]>,
    /// The state of each table that has had such words, in this run or an earlier one.
    sides: Box<[Option<Box<TableState>>]>,
}

struct TableState {
    /// The words that may not be zero, as bits.
    nonzero: [u64; TABLE_WORDS / 64],
    /// When each word was last written.
    written: [Moment; TABLE_WORDS],
}

impl TableStates {
    pub(super) fn of(tables: usize) -> Self {
        TableStates {
            used: vec![0; tables.div_ceil(64)].into(),
            sides: (0..tables).map(|_| None).collect(),
        }
    }

    pub(super) fn tables(&self) -> u32 {
        self.sides.len() as u32
    }

    /// Returns the moment at which a word was last written.
    #[inline]
    pub(super) fn written(&self, (table, index): (u32, usize)) -> Moment {
        let side = &self.sides[table as usize];
        side.as_ref().map_or(0, |side| side.written[index])
    }

    /// Records that a word that may not be zero was written at `now`.
    #[inline]
    pub(super) fn set_written(&mut self, (table, index): (u32, usize), now: Moment) {
        if let Some(side) = &mut self.sides[table as usize] {
            side.written[index] = now;
        }
    }

    /// Records that a word may not be zero from now on.
    #[inline]
    pub(super) fn use_word(&mut self, (table, index): (u32, usize)) {
        let table = table as usize;
        self.used[table / 64] |= 1 << (table % 64);
        let side = self.sides[table].get_or_insert_with(|| {
            Box::new(TableState { nonzero: [0; TABLE_WORDS / 64], written: [0; TABLE_WORDS] })
        });
        side.nonzero[index / 64] |= 1 << (index % 64);
    }

    /// Returns the words of a frame that may not be zero: none if the frame isn't a table.
    pub(super) fn words(&self, frame: u32) -> impl Iterator<Item = usize> + use<> {
        let side = self.sides.get(frame as usize).and_then(Option::as_ref);
        let nonzero = side.map_or([0; TABLE_WORDS / 64], |side| side.nonzero);
        let blocks = nonzero.into_iter().enumerate();
        blocks.flat_map(|(block, words)| bits(words).map(move |bit| block * 64 + bit))
    }

    /// Resets all words to zero, as if never written. Calls `zero` for each word that may not be zero.
    pub(super) fn clear(&mut self, mut zero: impl FnMut(u32, usize)) {
        for (block, used) in self.used.iter_mut().enumerate() {
            for table in bits(std::mem::take(used)).map(|bit| block * 64 + bit) {
                let Some(side) = &mut self.sides[table] else { continue };
                for (block, words) in side.nonzero.iter_mut().enumerate() {
                    for index in bits(std::mem::take(words)).map(|bit| block * 64 + bit) {
                        side.written[index] = 0;
                        zero(table as u32, index);
                    }
                }
            }
        }
    }
}

/// Returns the positions of the bits that are set.
#[inline]
fn bits(of: u64) -> impl Iterator<Item = usize> {
    let mut left = of;
    std::iter::from_fn(move || {
        let bit = left.trailing_zeros() as usize;
        left &= left.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}

#[cfg(test)]
mod tests;
