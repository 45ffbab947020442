//! Holds the translations that a TLB may hold, in the order of their fills.
//!
//! The TLB of a program with large pages holds hundreds of them, and each changed entry needs those that were filled
//! from it. So the places of their entries are kept beside them as numbers. The host compares many of these at once.

use crate::oracle::{Moment, UsedTranslation};
use crate::tables::{BLOCK, FRAME_SHIFT, frame_of};
use quell_vm::machine::{Level, TABLE_WORDS};
use std::ops::Range;

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

    /// Returns the moment at which its entry was written.
    pub(crate) fn written(&self) -> Moment {
        self.written
    }

    /// Returns the place of its entry in the tables.
    pub(crate) fn place(&self) -> (u32, usize) {
        (self.via, Level(self.level).index(quell::Page(self.from)))
    }
}

/// The translations that one TLB may hold.
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
