//! Models the translation caches of one CPU: two levels of TLB and the walker's caches.
//!
//! Each TLB array is set-associative with the geometry of the machine file. An entry's key is its page number, tag and
//! page size. A fill updates both levels; a second-level hit refills the first. The module doesn't know which
//! translations are correct. It keeps everything that the walker read, with enough history for the
//! [oracle](crate::oracle) to judge a later use.
//!
//! Invalidating a range takes one invalidation per stride. Each names one page and drops the entry that translates it,
//! of whatever size ([`PageRange::names`]). As in hardware, strides of large pages drop only the first base page of
//! each stride. If an invalidation names the size of the leaf entries to drop (Arm's level hint), other sizes remain.
//!
//! Walker caches (paging-structure caches on x86, walk caches on Arm) hold upper tables, so a walk may start below the
//! root. Their key is the part of the address that leads to the table. They're fully associative here, and replace the
//! oldest entry.

pub mod array;

use crate::costs::Costs;
use array::{Array, NUMBER};
use quell::{Frame, Page, PageRange, PageSize, Scope, Tag};
use quell_vm::Level;

/// The rights of a translation: to stores, and to user mode at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    pub write: bool,
    pub user: bool,
}

/// A cached translation with its history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Translation {
    /// The first frame of the page.
    pub frame: Frame,
    /// The word that the walker read, with accessed and dirty bits as the walker left them.
    pub raw: u64,
    /// The page-table page that holds the word, and its index there.
    pub table: Frame,
    pub index: u16,
    pub size: PageSize,
    pub rights: Rights,
    /// Whether stores may proceed without setting the dirty bit in the table.
    pub dirty: bool,
    /// The address space whose tables were walked.
    pub space: u32,
    /// The oracle's count of events at the fill.
    pub filled: u32,
    /// The event up to which the oracle has found the translation lawful.
    pub checked: u32,
}

/// Returns an entry's key: page number at its size, size and tag, never 0.
#[inline]
fn key(page: Page, size: PageSize, tag: Tag) -> u64 {
    let number = page.0 >> (9 * size as u64);
    1 << 63 | (size as u64) << 60 | (tag.0 as u64) << 40 | (number & NUMBER)
}

#[inline]
fn tag_of(key: u64) -> Tag {
    Tag((key >> 40) as u16)
}

/// A table in a walker cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WalkEntry {
    pub table: Frame,
    /// The oracle's count of events when the walker read it.
    pub filled: u32,
}

/// Returns the key of the table of `level` on the way to a page: the page number at the table's span.
#[inline]
fn walk_key(page: Page, level: u8, tag: Tag) -> u64 {
    1 << 63 | (tag.0 as u64) << 40 | page.0 >> (9 * (level as u64 + 1))
}

/// The place of a translation that a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The first-level array.
    array: u8,
    at: usize,
}

/// Returns the pages that invalidating a range names, for entries that span `pages` pages: from and to, with no unnamed
/// such entry in between.
fn named(range: PageRange, pages: u64) -> impl Iterator<Item = (Page, Page)> {
    let (stride, strides) = (range.stride.pages(), range.strides());
    // Entries at least as large as a stride are adjacent.
    let (runs, run) = if pages >= stride { (strides.min(1), strides.max(1)) } else { (strides, 1) };
    (0..runs).map(move |at| {
        let first = range.start.plus(at * stride);
        (first, first.plus((run - 1) * stride))
    })
}

/// All translation caches of one CPU.
#[derive(Clone, Debug)]
pub struct Tlb {
    /// First level, one array per size; arrays without entries share the first.
    first: [Array<Translation>; 3],
    second: Array<Translation>,
    second_huge: Array<Translation>,
    /// Walker caches, by the level of the table that the entries name: leaf, large, huge.
    walker: [Array<WalkEntry>; 3],
    /// Whether any entry of that size was filled since the last full flush. We don't search for sizes that a program
    /// doesn't use.
    sizes: [bool; 3],
    /// The size that the last lookup found, which is tried first.
    last: PageSize,
    /// The page and tag that both levels were last found to lack; nothing was filled since.
    missed: Option<(Page, Tag)>,
}

const SIZES: [PageSize; 3] = [PageSize::Base, PageSize::Large, PageSize::Huge];

impl Tlb {
    /// Creates empty caches of the machine's geometry.
    pub fn new(costs: &Costs) -> Self {
        let geometry = &costs.tlb;
        let array = |(entries, ways)| Array::new(entries, ways, geometry.replacement);
        Tlb {
            first: geometry.first.map(array),
            second: array(geometry.second),
            second_huge: array(geometry.second_huge),
            walker: geometry
                .walker
                .map(|entries| Array::new(entries, entries.max(1), geometry.replacement)),
            sizes: [false; 3],
            last: PageSize::Base,
            missed: None,
        }
    }

    #[inline]
    fn first_array(&self, size: PageSize) -> usize {
        let own = size as usize;
        if self.first[own].exists() { own } else { 0 }
    }

    #[inline]
    fn second_array(&mut self, size: PageSize) -> &mut Array<Translation> {
        match size {
            PageSize::Huge => &mut self.second_huge,
            PageSize::Base | PageSize::Large => &mut self.second,
        }
    }

    /// Searches the first level.
    #[inline]
    pub fn lookup_first(&mut self, page: Page, tag: Tag) -> Option<Place> {
        let last = self.last;
        if let Some(place) = self.lookup_size(page, last, tag) {
            return Some(place);
        }
        for size in SIZES {
            if size != last
                && self.sizes[size as usize]
                && let Some(place) = self.lookup_size(page, size, tag)
            {
                self.last = size;
                return Some(place);
            }
        }
        None
    }

    #[inline]
    fn lookup_size(&mut self, page: Page, size: PageSize, tag: Tag) -> Option<Place> {
        let array = self.first_array(size);
        let at = self.first[array].lookup(key(page, size, tag))?;
        Some(Place { array: array as u8, at })
    }

    /// Searches the second level; a hit is copied to the first.
    pub fn lookup_second(&mut self, page: Page, tag: Tag) -> Option<Place> {
        for size in SIZES {
            if !self.sizes[size as usize] {
                continue;
            }
            let second = self.second_array(size);
            if let Some(at) = second.lookup(key(page, size, tag)) {
                let entry = *second.entry(at);
                return self.add_first(page, tag, &entry);
            }
        }
        self.missed = Some((page, tag));
        None
    }

    /// Fills the first level, which doesn't hold the page.
    #[inline]
    fn add_first(&mut self, page: Page, tag: Tag, entry: &Translation) -> Option<Place> {
        let array = self.first_array(entry.size);
        let at = self.first[array].add(key(page, entry.size, tag), entry)?;
        self.last = entry.size;
        Some(Place { array: array as u8, at })
    }

    /// Fills a translation into both levels.
    pub fn fill(&mut self, page: Page, tag: Tag, entry: &Translation) -> Place {
        let absent = self.missed.take() == Some((page, tag));
        self.sizes[entry.size as usize] = true;
        let key = key(page, entry.size, tag);
        let array = self.first_array(entry.size);
        if !absent {
            // There was one, but it was insufficient, so we replace it. For example, it allowed no stores.
            self.first[array].drop_between(key, key);
            self.second_array(entry.size).drop_between(key, key);
        }
        self.second_array(entry.size).add(key, entry);
        self.add_first(page, tag, entry).unwrap_or(Place { array: 0, at: 0 })
    }

    /// Returns the entry at a place. The place is valid until the next lookup or fill.
    #[inline]
    pub fn at(&self, place: Place) -> &Translation {
        self.first[place.array as usize].entry(place.at)
    }

    /// Returns the entry at a place, for changes. The place is valid until the next lookup or fill.
    #[inline]
    pub fn at_mut(&mut self, place: Place) -> &mut Translation {
        self.first[place.array as usize].entry_mut(place.at)
    }

    /// Drops a page's translations under a tag, as a CPU does before a new walk.
    pub fn drop_page(&mut self, page: Page, tag: Tag) {
        self.drop_range(tag, PageRange::base(page, 1), Scope::Leaf, false);
    }

    /// Drops the entries that the invalidation of a range under a tag drops.
    ///
    /// With [`Scope::Tables`] that includes the walker caches for the range. With `hinted`, each invalidation names the
    /// size of the leaf entries: then other sizes remain, and all sizes remain if the range isn't aligned to that size.
    pub fn drop_range(&mut self, tag: Tag, range: PageRange, scope: Scope, hinted: bool) {
        let aligned = range.start.0.is_multiple_of(range.stride.pages());
        for size in SIZES {
            let told = !hinted || aligned && size == range.stride;
            if !self.sizes[size as usize] || !told {
                continue;
            }
            let array = self.first_array(size);
            for (first, last) in named(range, size.pages()) {
                let (first, last) = (key(first, size, tag), key(last, size, tag));
                self.first[array].drop_between(first, last);
                self.second_array(size).drop_between(first, last);
            }
        }
        if scope == Scope::Tables {
            for (level, cache) in self.walker.iter_mut().enumerate() {
                let level = level as u8;
                for (first, last) in named(range, Level(level + 1).pages()) {
                    cache.drop_between(walk_key(first, level, tag), walk_key(last, level, tag));
                }
            }
        }
    }

    /// Drops a tag's walker-cache entries. On x86 the invalidation of any page does that.
    pub fn drop_walker(&mut self, tag: Tag) {
        for cache in &mut self.walker {
            cache.drop_where(|key| tag_of(key) == tag);
        }
    }

    /// Drops everything under a tag.
    pub fn drop_tag(&mut self, tag: Tag) {
        for array in self.arrays_mut() {
            array.drop_where(|key| tag_of(key) == tag);
        }
        self.drop_walker(tag);
    }

    /// Drops everything.
    pub fn drop_all(&mut self) {
        for array in self.arrays_mut() {
            array.drop_all();
        }
        self.walker.iter_mut().for_each(Array::drop_all);
        self.sizes = [false; 3];
    }

    fn arrays_mut(&mut self) -> impl Iterator<Item = &mut Array<Translation>> {
        let rest = [&mut self.second, &mut self.second_huge];
        self.first.iter_mut().chain(rest)
    }

    /// Returns the lowest cached table on the way to `page`, with its level.
    #[inline]
    pub fn walk_start(&self, page: Page, tag: Tag) -> Option<(u8, WalkEntry)> {
        self.walker.iter().enumerate().find_map(|(level, cache)| {
            let at = cache.find(walk_key(page, level as u8, tag))?;
            Some((level as u8, *cache.entry(at)))
        })
    }

    /// Records that the walk to `page` used `table` of `level`. The level is lower than that of [`Tlb::walk_start`].
    #[inline]
    pub fn walk_seen(&mut self, page: Page, tag: Tag, level: u8, table: Frame, filled: u32) {
        if let Some(cache) = self.walker.get_mut(level as usize) {
            cache.add(walk_key(page, level, tag), &WalkEntry { table, filled });
        }
    }

    /// Returns every valid entry with its page and tag.
    ///
    /// Entries of the first level are listed again if the second level also has them.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = (Page, Tag, &Translation)> + '_ {
        let second = self.second.iter().chain(self.second_huge.iter());
        let all = second.chain(self.first.iter().flat_map(Array::iter));
        all.map(|(key, entry)| {
            let page = Page((key & NUMBER) * entry.size.pages());
            (page, tag_of(key), entry)
        })
    }
}

#[cfg(test)]
mod tests;
