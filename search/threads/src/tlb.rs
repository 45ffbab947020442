//! Models one CPU's TLB in software.
//!
//! The TLB is direct-mapped, and each line has a key and a walk's result. Only the owner fills a line; it writes the
//! key last. Other CPUs only empty lines (broadcast invalidation) by writing the key, so the owner never pairs a key
//! with another line's entry.
//!
//! Entries of the kernel's half are global, or have the tag that was loaded when they were filled. They stay when that
//! tag is unloaded. Two invalidations drop them: [`Invalidation::Everything`], and [`Invalidation::Kernel`], which
//! spares those under other tags.
//!
//! A line holds one page of any size that the tables have. An invalidation by address drops only the translation of the
//! page that it names. For a range with a larger stride, that's the first page of each stride.

use quell::{Invalidation, Page, PageSize, Tag};
use std::sync::atomic::{AtomicU64, Ordering};

const LINES: usize = 256;
const VALID: u64 = 1;
/// Marks an entry that is valid for all tags. Its key contains none.
const GLOBAL: u64 = 2;
const SIZE_SHIFT: u32 = 2;
const TAG_SHIFT: u32 = 4;
const PAGE_SHIFT: u32 = 20;

struct Line {
    /// 0, or valid bit, global bit, size, tag and page.
    key: AtomicU64,
    entry: AtomicU64,
    root: AtomicU64,
    since: AtomicU64,
}

pub struct Tlb {
    lines: Box<[Line]>,
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CachedEntry {
    /// The entry word at the time of the walk.
    pub entry: u64,
    /// The size of the page that the entry maps.
    pub size: PageSize,
    /// The root from which the entry was walked. A real TLB doesn't have this; the oracle needs it.
    pub root: u64,
    /// The time of the walk by the tables' clock. Only the oracle needs it.
    pub since: u64,
}

/// The tag under which an entry is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryTag {
    Tag(Tag),
    All,
}

impl EntryTag {
    fn key(self, page: u64, size: PageSize) -> u64 {
        let page = page & !(size.pages() - 1);
        debug_assert!(page >> (64 - PAGE_SHIFT) == 0, "the key has no room for page {page:#x}");
        let under = match self {
            EntryTag::Tag(tag) => u64::from(tag.0) << TAG_SHIFT,
            EntryTag::All => GLOBAL,
        };
        VALID | under | (size as u64) << SIZE_SHIFT | page << PAGE_SHIFT
    }

    fn index(self, page: u64, size: PageSize) -> usize {
        let tag = match self {
            EntryTag::Tag(tag) => usize::from(tag.0),
            EntryTag::All => 0,
        };
        (tag * 37 + (page / size.pages()) as usize) % LINES
    }
}

fn key_tag(key: u64) -> Tag {
    Tag((key >> TAG_SHIFT) as u16)
}

fn key_page(key: u64) -> Page {
    Page(key >> PAGE_SHIFT)
}

fn key_size(key: u64) -> PageSize {
    match key >> SIZE_SHIFT & 3 {
        0 => PageSize::Base,
        1 => PageSize::Large,
        _ => PageSize::Huge,
    }
}

fn key_is_global(key: u64) -> bool {
    key & GLOBAL != 0
}

impl Default for Tlb {
    fn default() -> Self {
        let word = || AtomicU64::new(0);
        let line = || Line { key: word(), entry: word(), root: word(), since: word() };
        Tlb { lines: (0..LINES).map(|_| line()).collect() }
    }
}

impl Tlb {
    /// Returns the entry of `page`, as a page of one of these sizes. Only the owner may call it.
    #[inline]
    pub fn find(&self, under: EntryTag, page: u64, sizes: &[PageSize]) -> Option<CachedEntry> {
        sizes.iter().find_map(|&size| {
            let line = &self.lines[under.index(page, size)];
            let held = line.key.load(Ordering::Relaxed);
            (held == under.key(page, size)).then(|| CachedEntry {
                entry: line.entry.load(Ordering::Relaxed),
                size,
                root: line.root.load(Ordering::Relaxed),
                since: line.since.load(Ordering::Relaxed),
            })
        })
    }

    /// Caches an entry. Only the owner may call it.
    #[inline]
    pub fn fill(&self, under: EntryTag, page: u64, cached: CachedEntry) {
        let line = &self.lines[under.index(page, cached.size)];
        line.key.store(0, Ordering::Relaxed);
        line.entry.store(cached.entry, Ordering::Relaxed);
        line.root.store(cached.root, Ordering::Relaxed);
        line.since.store(cached.since, Ordering::Relaxed);
        line.key.store(under.key(page, cached.size), Ordering::Relaxed);
    }

    /// Empties the line for a page of this size. Only the owner may call it.
    #[inline]
    pub fn forget(&self, under: EntryTag, page: u64, size: PageSize) {
        self.lines[under.index(page, size)].key.store(0, Ordering::Relaxed);
    }

    /// Empties the lines that an invalidation covers, in a TLB of pages of these sizes.
    ///
    /// Any CPU may call this. [`Invalidation::Kernel`] drops global entries and those under the tag `loaded`. If
    /// `loaded` is `None`, it drops entries under all tags.
    pub fn invalidate(&self, what: Invalidation, loaded: Option<Tag>, sizes: &[PageSize]) {
        let tagged = |key: u64, tag: Tag| !key_is_global(key) && key_tag(key) == tag;
        let pages = |key: u64| key_size(key).pages();
        let covers = |key: u64| match what {
            Invalidation::Range { tag, range, .. } => {
                tagged(key, tag) && range.names(key_page(key), pages(key))
            }
            Invalidation::Kernel { range, .. } => {
                let of_tag = loaded.is_none_or(|tag| tagged(key, tag));
                (key_is_global(key) || of_tag) && range.names(key_page(key), pages(key))
            }
            Invalidation::Tag(tag) => tagged(key, tag),
            Invalidation::All => !key_is_global(key),
            Invalidation::Everything => true,
        };
        let empty = |line: &Line| {
            let held = line.key.load(Ordering::Relaxed);
            if held != 0 && covers(held) {
                // If the owner has refilled the line meanwhile, it did so after this call began.
                let _ = line.key.compare_exchange(held, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        };
        match what {
            // For a few pages, hardware doesn't search either.
            Invalidation::Range { tag, range, .. } if range.strides() < LINES as u64 => {
                for page in range.each() {
                    for &size in sizes {
                        empty(&self.lines[EntryTag::Tag(tag).index(page.0, size)]);
                    }
                }
            }
            _ => self.lines.iter().for_each(empty),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell::{PageRange, Scope};

    const BASE: CachedEntry = CachedEntry { entry: 5, size: PageSize::Base, root: 2, since: 0 };
    const SIZES: &[PageSize] = &[PageSize::Base, PageSize::Large];

    /// Fills pages under tags 1 and 2, and invalidates. Returns the pages that are left under each tag.
    fn left_by(pages: &[u64], what: Invalidation) -> [Vec<u64>; 2] {
        let (tlb, unders) = (Tlb::default(), [1, 2].map(|tag| EntryTag::Tag(Tag(tag))));
        unders.iter().for_each(|&under| pages.iter().for_each(|&page| tlb.fill(under, page, BASE)));
        tlb.invalidate(what, None, SIZES);
        let left = |under, page: &u64| tlb.find(under, *page, SIZES).is_some();
        unders.map(|under| pages.iter().copied().filter(|page| left(under, page)).collect())
    }

    fn range(start: u64, pages: u64, stride: PageSize) -> Invalidation {
        let range = PageRange { start: Page(start), pages, stride };
        Invalidation::Range { tag: Tag(1), range, scope: Scope::Leaf }
    }

    #[test]
    fn invalidation_takes_what_it_covers_and_leaves_the_rest() {
        let pages = [0, 1, 2, 515];
        for (what, left, left_of_other) in [
            (range(1, 2, PageSize::Base), &[0, 515][..], &pages[..]),
            // A large stride takes one base page.
            (range(0, 1024, PageSize::Large), &[1, 2, 515], &pages),
            (range(3, 1024, PageSize::Large), &[0, 1, 2], &pages),
            (Invalidation::Tag(Tag(1)), &[], &pages),
            (Invalidation::All, &[], &[]),
        ] {
            assert_eq!(left_by(&pages, what), [left, left_of_other], "{what:?}");
        }
    }

    #[test]
    fn what_is_the_kernels_stays_until_it_is_meant() {
        let tlb = Tlb::default();
        let unders = [EntryTag::All, EntryTag::Tag(Tag(1)), EntryTag::Tag(Tag(2))];
        let kernel =
            Invalidation::Kernel { range: PageRange::base(Page(7), 1), scope: Scope::Leaf };
        let left_by = |what, loaded| {
            (unders.iter()).for_each(|&under| tlb.fill(under, 7, BASE));
            tlb.invalidate(what, loaded, SIZES);
            unders.map(|under| tlb.find(under, 7, SIZES).is_some())
        };
        assert_eq!(left_by(kernel, Some(Tag(1))), [false, false, true]);
        assert_eq!(left_by(kernel, None), [false; 3]);
        assert_eq!(left_by(Invalidation::All, None), [true, false, false]);
        assert_eq!(left_by(Invalidation::Tag(Tag(1)), None), [true, false, true]);
        assert_eq!(left_by(Invalidation::Everything, None), [false; 3]);
    }

    #[test]
    fn a_large_page_goes_with_any_of_its_pages_that_is_named() {
        let large = CachedEntry { size: PageSize::Large, ..BASE };
        for (start, goes) in [(512, true), (700, true), (511, false), (1024, false)] {
            let tlb = Tlb::default();
            tlb.fill(EntryTag::Tag(Tag(1)), 600, large);
            let found = |page| tlb.find(EntryTag::Tag(Tag(1)), page, SIZES);
            assert_eq!((found(1023), found(1024)), (Some(large), None));
            tlb.invalidate(range(start, 1, PageSize::Base), None, SIZES);
            assert_eq!(found(512).is_none(), goes, "{start}");
        }
    }
}
