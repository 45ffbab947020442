//! The translations that a TLB may hold, in the order of their fills.
//!
//! The TLB of a program with large pages holds hundreds of them, and each changed entry needs those filled from it. So
//! their entries' places are kept beside them, as numbers that a host compares many at once.

use crate::oracle::{Moment, Used};
use crate::tables::{BLOCK, FRAME_SHIFT, frame_of};
use quell_vm::machine::{Level, TABLE_WORDS};
use std::ops::Range;

/// Since when and until when the tables in memory lead from the root to an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// When the entry was written; that of the last pointer on the path that still led there, if the
    /// path had been cut before the entry was written.
    pub(super) since: Moment,
    /// When the path was cut: [`Moment::MAX`] if it was not.
    pub(super) cut: Moment,
}

impl Path {
    /// The path to an entry that is `written` at the end of this one.
    pub(super) fn to(self, written: Moment) -> Path {
        let since = if written < self.cut {
            written
        } else {
            self.since
        };
        Path { since, ..self }
    }

    /// Adds a second path to the entry: the one that lasts longer counts.
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
    /// The first page of the entry that it was filled from, which is another one's where the entry is one of a block.
    pub(super) from: u64,
    pub(crate) word: u64,
    pub(super) via: u32,
    pub(super) root: u32,
    pub(super) written: Moment,
    /// Until when it could be walked.
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

    /// The pages that it maps.
    pub(crate) fn pages_of(&self) -> Range<u64> {
        self.page..self.page + self.pages()
    }

    /// The same, filled for this page from an entry of its block.
    pub(super) fn of_block(self, page: u64) -> Self {
        let by = page.wrapping_sub(self.page) << FRAME_SHIFT;
        let word = self.word.wrapping_add(by);
        Leaf { page, word, ..self }
    }

    /// Returns the entry that it was filled from.
    pub(super) fn entry(&self) -> u64 {
        self.of_block(self.from).word
    }

    /// The page that maps a frame, if one does.
    pub(crate) fn page_of(&self, frame: u32) -> Option<u64> {
        let page = self.page + u64::from(frame.checked_sub(frame_of(self.word))?);
        self.covers(page).then_some(page)
    }

    /// As the oracle sees an access to `page` through it.
    pub(crate) fn used(&self, page: u64) -> Used {
        Used {
            root: self.root,
            page,
            frame: frame_of(self.word) + (page - self.page) as u32,
            written: self.written,
            since: self.path.since,
            until: self.path.cut,
        }
    }

    /// When the entry was written.
    pub(crate) fn written(&self) -> Moment {
        self.written
    }

    /// Returns the entry's place.
    pub(crate) fn place(&self) -> (u32, usize) {
        (self.via, Level(self.level).index(quell::Page(self.from)))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Leaves {
    leaves: Vec<Leaf>,
    /// For each of them [`block_of`] its entry.
    blocks: Vec<u32>,
}

/// How many numbers are compared before any is looked at.
const AT_ONCE: usize = 16;

/// Returns the block of an entry of a table, marked or not: a leaf of a block may have been filled from any entry of
/// it.
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

    /// For changes that leave each in its place.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Leaf> {
        self.leaves.iter_mut()
    }

    /// Returns the next translation whose entry is in the same block as this one, behind the first `from`, which then
    /// counts up to it.
    pub(super) fn next_beside(
        &mut self,
        place: (u32, usize),
        from: &mut usize,
    ) -> Option<&mut Leaf> {
        let block = block_of(place);
        // All of a piece are compared, so that the compiler need not do it one by one.
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
        Leaves {
            leaves: self.leaves.clone(),
            blocks: self.blocks.clone(),
        }
    }

    /// In the memory that there is.
    fn clone_from(&mut self, other: &Self) {
        self.leaves.clone_from(&other.leaves);
        self.blocks.clone_from(&other.blocks);
    }
}
