//! A TLB in software: what one CPU remembers of the page tables.
//!
//! Direct-mapped, one key and one entry word per line. Only the owner fills a line; it writes the
//! entry before the key. Others may only empty lines (broadcast invalidation), which touches the
//! key alone, so the owner never pairs a key with another line's entry.
//!
//! Entries of the kernel's half are global, or stand under the tag that was loaded when they were filled, and stay
//! there when it is loaded no more. Only what reaches them takes them away: [`Invalidate::Kernel`], which leaves those
//! under other tags alone, and [`Invalidate::Everything`].
//!
//! All lines hold base pages. An invalidation by address reaches the one that it names: of a range
//! with a larger stride the first page of each stride goes, and nothing else.

use quell::{Invalidate, Page, Tag};
use std::sync::atomic::{AtomicU64, Ordering};

const LINES: usize = 256;
const VALID: u64 = 1;
/// The entry is one for all tags; the key has none.
const GLOBAL: u64 = 2;
const ROOT_BITS: u32 = 14;
const ROOT_SHIFT: u32 = 2;

struct Line {
    /// 0, or valid bit, global bit, tag, page and, for the oracle alone, the root it was walked from.
    key: AtomicU64,
    entry: AtomicU64,
}

/// One CPU's TLB.
pub struct Tlb {
    lines: Box<[Line]>,
}

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cached {
    /// The entry word, as it stood in the table when it was walked.
    pub entry: u64,
    /// The root from which it was walked. The hardware does not know this; the oracle does.
    pub root: u16,
}

/// What an entry stands under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Under {
    /// This tag.
    Tag(Tag),
    /// All of them.
    All,
}

impl Under {
    fn bits(self) -> u64 {
        match self {
            Under::Tag(tag) => VALID | u64::from(tag.0) << 16,
            Under::All => VALID | GLOBAL,
        }
    }

    fn index(self, page: u32) -> usize {
        let tag = match self {
            Under::Tag(tag) => usize::from(tag.0),
            Under::All => 0,
        };
        (tag * 37 + page as usize) % LINES
    }
}

fn key(under: Under, page: u32, root: u16) -> u64 {
    debug_assert!(
        root >> ROOT_BITS == 0,
        "the key has no room for root {root}"
    );
    under.bits() | u64::from(page) << 32 | u64::from(root) << ROOT_SHIFT
}

fn key_tag(key: u64) -> Tag {
    Tag((key >> 16) as u16)
}

fn key_page(key: u64) -> Page {
    Page(key >> 32)
}

fn key_is_global(key: u64) -> bool {
    key & GLOBAL != 0
}

impl Default for Tlb {
    fn default() -> Self {
        let line = || Line {
            key: AtomicU64::new(0),
            entry: AtomicU64::new(0),
        };
        Tlb {
            lines: (0..LINES).map(|_| line()).collect(),
        }
    }
}

impl Tlb {
    /// What is cached for `page`. Called by the owner.
    pub fn find(&self, under: Under, page: u32) -> Option<Cached> {
        let line = &self.lines[under.index(page)];
        let held = line.key.load(Ordering::Relaxed);
        let root = (held >> ROOT_SHIFT) as u16 & ((1 << ROOT_BITS) - 1);
        (held == key(under, page, root)).then(|| Cached {
            entry: line.entry.load(Ordering::Relaxed),
            root,
        })
    }

    /// Caches an entry. Called by the owner.
    pub fn fill(&self, under: Under, page: u32, cached: Cached) {
        let line = &self.lines[under.index(page)];
        line.key.store(0, Ordering::Relaxed);
        line.entry.store(cached.entry, Ordering::Relaxed);
        line.key
            .store(key(under, page, cached.root), Ordering::Relaxed);
    }

    /// Forgets one page. Called by the owner.
    pub fn forget(&self, under: Under, page: u32) {
        self.lines[under.index(page)]
            .key
            .store(0, Ordering::Relaxed);
    }

    /// Empties the lines that `what` covers. `loaded` is the tag whose entries of the kernel's half go with the global ones;
    /// `None` where those of all tags do. May be called by any CPU.
    pub fn invalidate(&self, what: Invalidate, loaded: Option<Tag>) {
        let tagged = |key: u64, tag: Tag| !key_is_global(key) && key_tag(key) == tag;
        let covers = |key: u64| match what {
            Invalidate::Range { tag, range, .. } => {
                tagged(key, tag) && range.names(key_page(key), 1)
            }
            Invalidate::Kernel { range, .. } => {
                let of_tag = loaded.is_none_or(|tag| tagged(key, tag));
                (key_is_global(key) || of_tag) && range.names(key_page(key), 1)
            }
            Invalidate::Tag(tag) => tagged(key, tag),
            Invalidate::All => !key_is_global(key),
            Invalidate::Everything => true,
        };
        let empty = |line: &Line| {
            let held = line.key.load(Ordering::Relaxed);
            if held != 0 && covers(held) {
                // If the owner has refilled the line meanwhile, that was after the call began.
                let _ = line
                    .key
                    .compare_exchange(held, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        };
        match what {
            // Hardware does not search for a few pages either.
            Invalidate::Range { tag, range, .. } if range.strides() < LINES as u64 => {
                let stride = range.stride.pages();
                let pages = (0..range.strides()).map(|at| range.start.0 + at * stride);
                pages.for_each(|page| empty(&self.lines[Under::Tag(tag).index(page as u32)]));
            }
            _ => self.lines.iter().for_each(empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell::{PageRange, PageSize, Scope};

    #[test]
    fn a_large_stride_takes_one_base_page() {
        let tlb = Tlb::default();
        let pages = [0, 2, 515];
        for page in pages {
            tlb.fill(Under::Tag(Tag(1)), page, Cached { entry: 5, root: 2 });
        }
        let left_by = |start| {
            tlb.invalidate(
                Invalidate::Range {
                    tag: Tag(1),
                    range: PageRange {
                        start: Page(start),
                        pages: 1024,
                        stride: PageSize::Large,
                    },
                    scope: Scope::Leaf,
                },
                None,
            );
            pages.map(|page| tlb.find(Under::Tag(Tag(1)), page).is_some())
        };
        assert_eq!(left_by(0), [false, true, true]);
        assert_eq!(left_by(3), [false, true, false]);
    }

    #[test]
    fn invalidation_takes_what_it_covers_and_leaves_the_rest() {
        let tlb = Tlb::default();
        let cached = Cached { entry: 5, root: 2 };
        for page in 0..4 {
            tlb.fill(Under::Tag(Tag(1)), page, cached);
            tlb.fill(Under::Tag(Tag(2)), page, cached);
        }
        tlb.invalidate(
            Invalidate::Range {
                tag: Tag(1),
                range: PageRange::base(Page(1), 2),
                scope: Scope::Leaf,
            },
            None,
        );
        let left = |tag| {
            (0..4)
                .map(|page| tlb.find(Under::Tag(tag), page).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(left(Tag(1)), [true, false, false, true]);
        assert_eq!(left(Tag(2)), [true; 4]);
        tlb.invalidate(Invalidate::Tag(Tag(2)), None);
        assert_eq!(left(Tag(2)), [false; 4]);
        tlb.invalidate(Invalidate::All, None);
        assert_eq!(left(Tag(1)), [false; 4]);
    }

    #[test]
    fn what_is_the_kernels_stays_until_it_is_meant() {
        let tlb = Tlb::default();
        let cached = Cached { entry: 5, root: 2 };
        let unders = [Under::All, Under::Tag(Tag(1)), Under::Tag(Tag(2))];
        let kernel = Invalidate::Kernel {
            range: PageRange::base(Page(7), 1),
            scope: Scope::Leaf,
        };
        let left_by = |what, loaded| {
            (unders.iter()).for_each(|&under| tlb.fill(under, 7, cached));
            tlb.invalidate(what, loaded);
            unders.map(|under| tlb.find(under, 7).is_some())
        };
        assert_eq!(left_by(kernel, Some(Tag(1))), [false, false, true]);
        assert_eq!(left_by(kernel, None), [false; 3]);
        assert_eq!(left_by(Invalidate::All, None), [true, false, false]);
        assert_eq!(left_by(Invalidate::Tag(Tag(1)), None), [true, false, true]);
        assert_eq!(left_by(Invalidate::Everything, None), [false; 3]);
    }
}
