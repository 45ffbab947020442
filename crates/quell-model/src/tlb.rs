//! Translation caches: two levels of TLB and the walker's own caches, of one CPU.
//!
//! Each TLB array is set-associative with the geometry of the machine file; the key of an entry is
//! the page number at the entry's size, the tag it was filled under and the size. A fill goes to
//! both levels; a second-level hit refills the first. Nothing here knows what a translation ought
//! to be: an entry keeps what the walker read, with enough of its history for the
//! [oracle](crate::oracle) to judge a later use.
//!
//! Walker caches (paging-structure caches on x86, walk caches on Arm) remember tables by the part
//! of the address that leads to them, so that a walk may start below the root. They are fully
//! associative and replace the oldest entry.

use crate::costs::Costs;
use quell::{Frame, Page, PageRange, PageSize, Scope, Tag};

/// What a program may do through an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Stores.
    pub write: bool,
    /// Accesses in user mode.
    pub user: bool,
    /// Instruction fetches.
    pub execute: bool,
}

/// A cached translation with its history.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    /// The first frame of the page.
    pub frame: Frame,
    /// The word that the walker read, accessed and dirty bits as it left them.
    pub raw: u64,
    /// The page-table page that the word lies in, and its index there.
    pub table: Frame,
    /// The index of the word.
    pub index: u16,
    /// The size of the page.
    pub size: PageSize,
    /// What it allows.
    pub rights: Rights,
    /// Whether stores may go ahead without telling the table.
    pub dirty: bool,
    /// The address space whose tables were walked.
    pub space: u32,
    /// When it was filled, in the oracle's count of events.
    pub filled: u32,
    /// Up to which event the oracle has cleared it.
    pub checked: u32,
}

impl Default for Translation {
    fn default() -> Self {
        Translation {
            frame: Frame(0),
            raw: 0,
            table: Frame(0),
            index: 0,
            size: PageSize::Base,
            rights: Rights::default(),
            dirty: false,
            space: 0,
            filled: 0,
            checked: 0,
        }
    }
}

/// Which entry of a full set makes room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The least recently used.
    Lru,
    /// One whose use bit is clear; when the last bit would be set, the others are cleared.
    PseudoLru,
}

/// An entry's key: page number at its size, size and tag, never 0.
#[inline]
fn key(page: Page, size: PageSize, tag: Tag) -> u64 {
    let number = page.0 / size.pages();
    1 << 63 | (size as u64) << 60 | (tag.0 as u64) << 40 | (number & ((1 << 40) - 1))
}

#[inline]
fn tag_of(key: u64) -> Tag {
    Tag((key >> 40) as u16)
}

/// Slots of the table that guesses the way of a key, so that highly associative arrays are not
/// searched way by way. A guess is checked against the key, so it changes nothing but speed.
const HINTS: usize = 256;

/// One set-associative array.
#[derive(Clone, Debug)]
pub struct Array {
    sets: usize,
    ways: usize,
    replacement: Replacement,
    keys: Vec<u64>,
    entries: Vec<Translation>,
    /// When each entry was used (LRU), or one word of use bits for each set (pseudo-LRU).
    used: Vec<u32>,
    recent: Vec<u64>,
    hints: Vec<u16>,
    clock: u32,
    /// Entries that are valid, so that flushing an empty array costs nothing.
    live: usize,
}

impl Array {
    /// An empty array.
    ///
    /// # Panics
    /// If `entries` is not a multiple of `ways`.
    pub fn new(entries: usize, ways: usize, replacement: Replacement) -> Self {
        assert!(
            entries == 0 || ways > 0 && entries.is_multiple_of(ways),
            "{entries} entries in {ways} ways"
        );
        Array {
            sets: entries.checked_div(ways).unwrap_or(0),
            ways,
            replacement,
            keys: Vec::new(),
            entries: Vec::new(),
            used: Vec::new(),
            recent: Vec::new(),
            hints: Vec::new(),
            clock: 0,
            live: 0,
        }
    }

    /// Takes the host's memory, on the first fill: a CPU that never runs costs nothing.
    fn allocate(&mut self) {
        let entries = self.sets * self.ways;
        self.keys = vec![0; entries];
        self.entries = vec![Translation::default(); entries];
        match self.replacement {
            Replacement::Lru => self.used = vec![0; entries],
            Replacement::PseudoLru => self.recent = vec![0; self.sets * self.words()],
        }
        if self.ways > 8 {
            self.hints = vec![0; HINTS];
        }
    }

    #[inline]
    fn set(&self, key: u64) -> usize {
        let number = (key & ((1 << 40) - 1)) as usize;
        // Power-of-two sets everywhere in practice; the remainder is right for any other.
        if self.sets.is_power_of_two() {
            number & (self.sets - 1)
        } else {
            number % self.sets
        }
    }

    #[inline]
    fn hint(key: u64) -> usize {
        (key ^ key >> 8 ^ key >> 40) as usize & (HINTS - 1)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        if self.live == 0 {
            return None;
        }
        let first = self.set(key) * self.ways;
        if !self.hints.is_empty() {
            let guess = first + self.hints[Self::hint(key)] as usize;
            if self.keys.get(guess) == Some(&key) {
                return Some(guess);
            }
        }
        let set = &self.keys[first..first + self.ways];
        set.iter()
            .position(|&held| held == key)
            .map(|way| first + way)
    }

    #[inline]
    fn touch(&mut self, at: usize) {
        match self.replacement {
            Replacement::Lru => {
                self.clock = self.clock.wrapping_add(1);
                self.used[at] = self.clock;
            }
            Replacement::PseudoLru => {
                let (set, way) = (at / self.ways, at % self.ways);
                let (words, ways) = (self.words(), self.ways);
                let recent = &mut self.recent[set * words..(set + 1) * words];
                recent[way / 64] |= 1 << (way % 64);
                let used: u32 = recent.iter().map(|word| word.count_ones()).sum();
                if used as usize == ways {
                    recent.fill(0);
                    recent[way / 64] = 1 << (way % 64);
                }
            }
        }
    }

    /// Words of use bits for a set.
    #[inline]
    fn words(&self) -> usize {
        self.ways.div_ceil(64)
    }

    /// Looks an entry up and counts the use.
    #[inline]
    pub fn lookup(&mut self, page: Page, size: PageSize, tag: Tag) -> Option<usize> {
        let key = key(page, size, tag);
        let at = self.find(key)?;
        if !self.hints.is_empty() {
            self.hints[Self::hint(key)] = (at % self.ways) as u16;
        }
        self.touch(at);
        Some(at)
    }

    /// The entry that [`Array::lookup`] found.
    #[inline]
    pub fn entry(&self, at: usize) -> &Translation {
        &self.entries[at]
    }

    /// The entry that [`Array::lookup`] found.
    #[inline]
    pub fn entry_mut(&mut self, at: usize) -> &mut Translation {
        &mut self.entries[at]
    }

    /// Fills an entry and returns where it lies.
    pub fn insert(&mut self, page: Page, tag: Tag, entry: Translation) -> Option<usize> {
        if self.sets == 0 {
            return None;
        }
        if self.keys.is_empty() {
            self.allocate();
        }
        let key = key(page, entry.size, tag);
        let at = self.find(key).unwrap_or_else(|| self.victim(key));
        if self.keys[at] == 0 {
            self.live += 1;
        }
        self.keys[at] = key;
        self.entries[at] = entry;
        if !self.hints.is_empty() {
            self.hints[Self::hint(key)] = (at % self.ways) as u16;
        }
        self.touch(at);
        Some(at)
    }

    fn victim(&self, key: u64) -> usize {
        let first = self.set(key) * self.ways;
        let ways = first..first + self.ways;
        if let Some(free) = ways.clone().find(|&at| self.keys[at] == 0) {
            return free;
        }
        match self.replacement {
            Replacement::Lru => {
                let age = |at: &usize| self.clock.wrapping_sub(self.used[*at]);
                ways.max_by_key(age).unwrap_or(first)
            }
            Replacement::PseudoLru => {
                let words = self.words();
                let recent = &self.recent[first / self.ways * words..][..words];
                let unused = |way: &usize| recent[way / 64] & 1 << (way % 64) == 0;
                first + (0..self.ways).find(unused).unwrap_or(0)
            }
        }
    }

    #[inline]
    fn drop_at(&mut self, at: usize) {
        self.keys[at] = 0;
        self.live -= 1;
    }

    /// Drops the entries whose key `which` accepts.
    fn drop_where(&mut self, which: impl Fn(u64) -> bool) {
        if self.live == 0 {
            return;
        }
        for at in 0..self.keys.len() {
            if self.keys[at] != 0 && which(self.keys[at]) {
                self.drop_at(at);
            }
        }
    }

    fn drop_range(&mut self, tag: Tag, range: PageRange, size: PageSize) {
        if self.live == 0 {
            return;
        }
        let first = range.start.0 / size.pages();
        let last = (range.end().0.max(range.start.0 + 1) - 1) / size.pages();
        if last - first < self.keys.len() as u64 {
            for number in first..=last {
                if let Some(at) = self.find(key(Page(number * size.pages()), size, tag)) {
                    self.drop_at(at);
                }
            }
        } else {
            let numbers = key(Page(first * size.pages()), size, tag)
                ..=key(Page(last * size.pages()), size, tag);
            self.drop_where(|held| numbers.contains(&held));
        }
    }

    fn drop_all(&mut self) {
        if self.live > 0 {
            self.keys.fill(0);
            self.live = 0;
        }
    }

    /// The valid entries with the first page and the tag of each.
    pub fn iter(&self) -> impl Iterator<Item = (Page, Tag, &Translation)> + '_ {
        self.keys
            .iter()
            .zip(&self.entries)
            .filter(|&(&key, _)| key != 0)
            .map(|(&key, entry)| {
                let number = key & ((1 << 40) - 1);
                (Page(number * entry.size.pages()), tag_of(key), entry)
            })
    }
}

/// A table that a walker cache knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WalkEntry {
    /// The address prefix, shifted so that one table spans one value.
    prefix: u64,
    tag: Tag,
    /// The table.
    pub table: Frame,
    /// The oracle's count of events when the walker read it.
    pub filled: u32,
}

/// The walker cache of one level.
#[derive(Clone, Debug)]
struct WalkCache {
    entries: Vec<WalkEntry>,
    capacity: usize,
    next: usize,
}

impl WalkCache {
    fn new(capacity: usize) -> Self {
        WalkCache {
            entries: Vec::with_capacity(capacity),
            capacity,
            next: 0,
        }
    }

    fn insert(&mut self, entry: WalkEntry) {
        if self.capacity == 0 {
            return;
        }
        let same = |held: &&mut WalkEntry| (held.prefix, held.tag) == (entry.prefix, entry.tag);
        if let Some(held) = self.entries.iter_mut().find(same) {
            *held = entry;
        } else if self.entries.len() < self.capacity {
            self.entries.push(entry);
        } else {
            self.entries[self.next] = entry;
            self.next = (self.next + 1) % self.capacity;
        }
    }

    fn drop_where(&mut self, which: impl Fn(&WalkEntry) -> bool) {
        if !self.entries.is_empty() {
            self.entries.retain(|entry| !which(entry));
            self.next = 0;
        }
    }
}

/// Where a lookup found its translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which of the first-level arrays.
    array: u8,
    at: usize,
}

/// All translation caches of one CPU.
#[derive(Clone, Debug)]
pub struct Tlb {
    /// First level, one array per size; arrays without entries share the first.
    first: [Array; 3],
    second: Array,
    second_huge: Array,
    /// By the level of the table that the entries name: leaf, large, huge.
    walker: [WalkCache; 3],
    /// Whether the first-level array for base pages holds every size.
    shared_first: bool,
    /// Whether the second level has no entries for 1 GB pages.
    no_second_huge: bool,
    /// Whether any entry of that size was filled since the last flush of everything: sizes that a
    /// program does not use are not looked for.
    sizes: [bool; 3],
    /// The size that the last lookup found, looked for first.
    last: PageSize,
}

const SIZES: [PageSize; 3] = [PageSize::Base, PageSize::Large, PageSize::Huge];

impl Tlb {
    /// Empty caches of the machine's geometry.
    pub fn new(costs: &Costs) -> Self {
        let geometry = &costs.tlb;
        let array = |(entries, ways)| Array::new(entries, ways, geometry.replacement);
        Tlb {
            first: geometry.first.map(array),
            second: array(geometry.second),
            second_huge: array(geometry.second_huge),
            walker: geometry.walker.map(WalkCache::new),
            shared_first: geometry.first[1].0 == 0 || geometry.first[2].0 == 0,
            no_second_huge: geometry.second_huge.0 == 0,
            sizes: [false; 3],
            last: PageSize::Base,
        }
    }

    #[inline]
    fn first_array(&self, size: PageSize) -> usize {
        let own = size as usize;
        if self.shared_first && self.first[own].sets == 0 {
            0
        } else {
            own
        }
    }

    /// Looks in the first level.
    #[inline]
    pub fn lookup_first(&mut self, page: Page, tag: Tag) -> Option<Place> {
        let last = self.last;
        if let Some(place) = self.lookup_size(page, last, tag) {
            return Some(place);
        }
        for size in SIZES {
            if size != last && self.sizes[size as usize] {
                if let Some(place) = self.lookup_size(page, size, tag) {
                    self.last = size;
                    return Some(place);
                }
            }
        }
        None
    }

    #[inline]
    fn lookup_size(&mut self, page: Page, size: PageSize, tag: Tag) -> Option<Place> {
        let array = self.first_array(size);
        let at = self.first[array].lookup(page, size, tag)?;
        Some(Place {
            array: array as u8,
            at,
        })
    }

    /// Looks in the second level; a hit is copied to the first.
    pub fn lookup_second(&mut self, page: Page, tag: Tag) -> Option<Place> {
        for size in SIZES {
            if !self.sizes[size as usize] {
                continue;
            }
            let second = match size {
                PageSize::Huge if self.no_second_huge => continue,
                PageSize::Huge => &mut self.second_huge,
                _ => &mut self.second,
            };
            if let Some(at) = second.lookup(page, size, tag) {
                let entry = *second.entry(at);
                return self.insert_first(page, tag, entry);
            }
        }
        None
    }

    fn insert_first(&mut self, page: Page, tag: Tag, entry: Translation) -> Option<Place> {
        let array = self.first_array(entry.size);
        let at = self.first[array].insert(page, tag, entry)?;
        self.last = entry.size;
        Some(Place {
            array: array as u8,
            at,
        })
    }

    /// Fills a translation into both levels.
    pub fn fill(&mut self, page: Page, tag: Tag, entry: Translation) -> Place {
        self.sizes[entry.size as usize] = true;
        match entry.size {
            PageSize::Huge => self.second_huge.insert(page, tag, entry),
            _ => self.second.insert(page, tag, entry),
        };
        self.insert_first(page, tag, entry)
            .unwrap_or(Place { array: 0, at: 0 })
    }

    /// The entry at a place; valid until the next lookup or fill.
    #[inline]
    pub fn at(&self, place: Place) -> &Translation {
        self.first[place.array as usize].entry(place.at)
    }

    /// The entry at a place; valid until the next lookup or fill.
    #[inline]
    pub fn at_mut(&mut self, place: Place) -> &mut Translation {
        self.first[place.array as usize].entry_mut(place.at)
    }

    /// Drops the translations of one page under a tag, as a CPU does that found one insufficient.
    pub fn drop_page(&mut self, page: Page, tag: Tag) {
        self.drop_range(tag, PageRange::base(page, 1), Scope::Leaf);
    }

    /// Drops the entries of a range under a tag; with [`Scope::Tables`], what the walker caches know
    /// of the path there.
    pub fn drop_range(&mut self, tag: Tag, range: PageRange, scope: Scope) {
        for size in SIZES {
            if self.sizes[size as usize] {
                let array = self.first_array(size);
                self.first[array].drop_range(tag, range, size);
                match size {
                    PageSize::Huge => self.second_huge.drop_range(tag, range, size),
                    _ => self.second.drop_range(tag, range, size),
                }
            }
        }
        if scope == Scope::Tables {
            let (first, last) = (range.start.0, range.end().0.max(range.start.0 + 1) - 1);
            for (level, cache) in self.walker.iter_mut().enumerate() {
                let shift = 9 * (level as u64 + 1);
                let prefixes = first >> shift..=last >> shift;
                cache.drop_where(|entry| entry.tag == tag && prefixes.contains(&entry.prefix));
            }
        }
    }

    /// Drops what the walker caches hold under a tag: on x86, part of invalidating any page.
    pub fn drop_walker(&mut self, tag: Tag) {
        for cache in &mut self.walker {
            cache.drop_where(|entry| entry.tag == tag);
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
        for cache in &mut self.walker {
            cache.drop_where(|_| true);
        }
        self.sizes = [false; 3];
    }

    fn arrays_mut(&mut self) -> impl Iterator<Item = &mut Array> {
        let rest = [&mut self.second, &mut self.second_huge];
        self.first.iter_mut().chain(rest)
    }

    /// The lowest table on the way to `page` that the walker caches know, with its level.
    #[inline]
    pub fn walk_start(&self, page: Page, tag: Tag) -> Option<(u8, WalkEntry)> {
        self.walker.iter().enumerate().find_map(|(level, cache)| {
            let prefix = page.0 >> (9 * (level as u64 + 1));
            let known = |entry: &&WalkEntry| entry.prefix == prefix && entry.tag == tag;
            let entry = cache.entries.iter().find(known)?;
            Some((level as u8, *entry))
        })
    }

    /// Remembers that the walk to `page` came by `table`, which is of `level`.
    pub fn walk_seen(&mut self, page: Page, tag: Tag, level: u8, table: Frame, filled: u32) {
        if let Some(cache) = self.walker.get_mut(level as usize) {
            cache.insert(WalkEntry {
                prefix: page.0 >> (9 * (level as u64 + 1)),
                tag,
                table,
                filled,
            });
        }
    }

    /// Every valid entry with its page and tag; those of the first level are listed again.
    pub fn iter(&self) -> impl Iterator<Item = (Page, Tag, &Translation)> + '_ {
        let second = self.second.iter().chain(self.second_huge.iter());
        second.chain(self.first.iter().flat_map(Array::iter))
    }
}

#[cfg(test)]
mod tests;
