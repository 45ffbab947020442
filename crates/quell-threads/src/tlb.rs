//! A TLB in software: what one CPU remembers of the page tables.
//!
//! Direct-mapped, one key and one entry word per line. Only the owner fills a line; it writes the
//! entry before the key. Others may only empty lines (broadcast invalidation), which touches the
//! key alone, so the owner never pairs a key with another line's entry.
//!
//! All lines hold base pages. An invalidation by address reaches the one that it names: of a range
//! with a larger stride the first page of each stride goes, and nothing else.

use quell::{Invalidate, Page, Tag};
use std::sync::atomic::{AtomicU64, Ordering};

const LINES: usize = 256;
const VALID: u64 = 1;

struct Line {
    /// 0, or valid bit, tag, page and, for the oracle alone, the root it was walked from.
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

fn key(tag: Tag, page: u16, root: u16) -> u64 {
    VALID | u64::from(tag.0) << 16 | u64::from(page) << 32 | u64::from(root) << 48
}

fn key_tag(key: u64) -> Tag {
    Tag((key >> 16) as u16)
}

fn key_page(key: u64) -> Page {
    Page(key >> 32 & 0xffff)
}

fn index(tag: Tag, page: u16) -> usize {
    (usize::from(tag.0) * 37 + usize::from(page)) % LINES
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
    /// What is cached for `page` under `tag`. Called by the owner.
    pub fn find(&self, tag: Tag, page: u16) -> Option<Cached> {
        let line = &self.lines[index(tag, page)];
        let held = line.key.load(Ordering::Relaxed);
        let hit =
            held & VALID != 0 && key_tag(held) == tag && key_page(held) == Page(u64::from(page));
        hit.then(|| Cached {
            entry: line.entry.load(Ordering::Relaxed),
            root: (held >> 48) as u16,
        })
    }

    /// Caches an entry. Called by the owner.
    pub fn fill(&self, tag: Tag, page: u16, cached: Cached) {
        let line = &self.lines[index(tag, page)];
        line.key.store(0, Ordering::Relaxed);
        line.entry.store(cached.entry, Ordering::Relaxed);
        line.key
            .store(key(tag, page, cached.root), Ordering::Relaxed);
    }

    /// Forgets one page. Called by the owner.
    pub fn forget(&self, tag: Tag, page: u16) {
        self.lines[index(tag, page)].key.store(0, Ordering::Relaxed);
    }

    /// Empties the lines that `what` covers. May be called by any CPU.
    pub fn invalidate(&self, what: Invalidate) {
        let covers = |key: u64| match what {
            Invalidate::Range { tag, range, .. } => {
                key_tag(key) == tag && range.names(key_page(key), 1)
            }
            Invalidate::Kernel { range, .. } => range.names(key_page(key), 1),
            Invalidate::Tag(tag) => key_tag(key) == tag,
            Invalidate::All | Invalidate::Everything => true,
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
                pages.for_each(|page| empty(&self.lines[index(tag, page as u16)]));
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
            tlb.fill(Tag(1), page, Cached { entry: 5, root: 2 });
        }
        let left_by = |start| {
            tlb.invalidate(Invalidate::Range {
                tag: Tag(1),
                range: PageRange {
                    start: Page(start),
                    pages: 1024,
                    stride: PageSize::Large,
                },
                scope: Scope::Leaf,
            });
            pages.map(|page| tlb.find(Tag(1), page).is_some())
        };
        assert_eq!(left_by(0), [false, true, true]);
        assert_eq!(left_by(3), [false, true, false]);
    }

    #[test]
    fn invalidation_takes_what_it_covers_and_leaves_the_rest() {
        let tlb = Tlb::default();
        let cached = Cached { entry: 5, root: 2 };
        for page in 0..4 {
            tlb.fill(Tag(1), page, cached);
            tlb.fill(Tag(2), page, cached);
        }
        tlb.invalidate(Invalidate::Range {
            tag: Tag(1),
            range: PageRange::base(Page(1), 2),
            scope: Scope::Leaf,
        });
        let left = |tag| {
            (0..4)
                .map(|page| tlb.find(tag, page).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(left(Tag(1)), [true, false, false, true]);
        assert_eq!(left(Tag(2)), [true; 4]);
        tlb.invalidate(Invalidate::Tag(Tag(2)));
        assert_eq!(left(Tag(2)), [false; 4]);
        tlb.invalidate(Invalidate::All);
        assert_eq!(left(Tag(1)), [false; 4]);
    }
}
