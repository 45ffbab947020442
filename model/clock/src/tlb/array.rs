//! A set-associative array, for TLBs and walker caches.
//!
//! Each entry has a 64-bit key, never 0, whose low 40 bits select the set. Arrays of many ways have a small additional
//! table that counts the entries of each hash and guesses the way of one. It affects only our speed.

/// The entry of a full set to replace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// The least recently used.
    Lru,
    /// An entry with a clear use bit. When the last bit would be set, all others are cleared.
    PseudoLru,
}

/// Bits of a key that choose the set.
pub const NUMBER: u64 = (1 << 40) - 1;

/// Slots of the additional table of arrays with many ways.
const HINTS: usize = 256;

#[derive(Clone, Copy, Debug, Default)]
struct Hint {
    /// The number of entries that hash to the slot.
    count: u16,
    /// The way of one of them, perhaps.
    way: u16,
}

/// A set-associative array of `T`.
#[derive(Clone, Debug)]
pub struct Array<T> {
    sets: usize,
    ways: usize,
    /// `sets - 1`, if that is a mask.
    mask: Option<usize>,
    replacement: Replacement,
    keys: Vec<u64>,
    entries: Vec<T>,
    /// The time of each entry's last use (LRU).
    used: Vec<u32>,
    clock: u32,
    /// Words of use bits for each set (pseudo-LRU).
    recent: Vec<u64>,
    words: usize,
    /// The value of the last of those words when every way was used.
    full: u64,
    hints: Vec<Hint>,
    /// The number of valid entries, so that a lookup in an empty array costs nothing.
    live: usize,
}

impl<T: Copy + Default> Array<T> {
    /// Creates an empty array.
    ///
    /// # Panics
    /// If `entries` isn't a multiple of `ways`.
    pub fn new(entries: usize, ways: usize, replacement: Replacement) -> Self {
        assert!(
            entries == 0 || ways > 0 && entries.is_multiple_of(ways),
            "{entries} entries in {ways} ways"
        );
        let sets = entries.checked_div(ways).unwrap_or(0);
        Array {
            sets,
            ways,
            mask: sets.is_power_of_two().then(|| sets - 1),
            replacement,
            keys: Vec::new(),
            entries: Vec::new(),
            used: Vec::new(),
            clock: 0,
            recent: Vec::new(),
            words: ways.div_ceil(64),
            full: u64::MAX >> ((ways.div_ceil(64) * 64 - ways) % 64),
            hints: Vec::new(),
            live: 0,
        }
    }

    /// Returns whether it has room for any entry.
    #[inline]
    pub fn exists(&self) -> bool {
        self.sets > 0
    }

    /// Allocates the host's memory, on the first fill: a CPU that never runs costs nothing.
    #[cold]
    fn allocate(&mut self) {
        let entries = self.sets * self.ways;
        self.keys = vec![0; entries];
        self.entries = vec![T::default(); entries];
        match self.replacement {
            Replacement::Lru => self.used = vec![0; entries],
            Replacement::PseudoLru => self.recent = vec![0; self.sets * self.words],
        }
        if self.ways > 8 {
            self.hints = vec![Hint::default(); HINTS];
        }
    }

    #[inline]
    fn set(&self, key: u64) -> usize {
        let number = (key & NUMBER) as usize;
        match self.mask {
            Some(mask) => number & mask,
            None => number % self.sets,
        }
    }

    #[inline]
    fn hint(key: u64) -> usize {
        (key ^ key >> 8 ^ key >> 40) as usize & (HINTS - 1)
    }

    /// Returns the set and the way of a key.
    #[inline(always)]
    fn place(&self, key: u64) -> Option<(usize, usize)> {
        if self.live == 0 {
            return None;
        }
        let set = self.set(key);
        let keys = &self.keys[set * self.ways..][..self.ways];
        if !self.hints.is_empty() {
            let hint = self.hints[Self::hint(key)];
            if hint.count == 0 {
                return None;
            }
            if keys[hint.way as usize] == key {
                return Some((set, hint.way as usize));
            }
        }
        let way = keys.iter().position(|&held| held == key)?;
        Some((set, way))
    }

    /// Returns the place of a key's entry, without counting a use.
    #[inline]
    pub fn find(&self, key: u64) -> Option<usize> {
        self.place(key).map(|(set, way)| set * self.ways + way)
    }

    #[inline(always)]
    fn touch(&mut self, set: usize, way: usize) {
        match self.replacement {
            Replacement::Lru => {
                self.clock = self.clock.wrapping_add(1);
                self.used[set * self.ways + way] = self.clock;
            }
            Replacement::PseudoLru if self.words == 1 => {
                let bit = 1 << way;
                let recent = &mut self.recent[set];
                *recent |= bit;
                if *recent == self.full {
                    *recent = bit;
                }
            }
            Replacement::PseudoLru => self.touch_wide(set, way),
        }
    }

    /// Does [`Array::touch`] for more than 64 ways.
    fn touch_wide(&mut self, set: usize, way: usize) {
        let recent = &mut self.recent[set * self.words..][..self.words];
        recent[way / 64] |= 1 << (way % 64);
        let (tail, rest) = (recent[self.words - 1], &recent[..self.words - 1]);
        if tail == self.full && rest.iter().all(|&word| word == u64::MAX) {
            recent.fill(0);
            recent[way / 64] = 1 << (way % 64);
        }
    }

    /// Searches for an entry and counts the use.
    #[inline]
    pub fn lookup(&mut self, key: u64) -> Option<usize> {
        let (set, way) = self.place(key)?;
        if !self.hints.is_empty() {
            self.hints[Self::hint(key)].way = way as u16;
        }
        self.touch(set, way);
        Some(set * self.ways + way)
    }

    /// Returns the entry that [`Array::lookup`] found.
    #[inline]
    pub fn entry(&self, at: usize) -> &T {
        &self.entries[at]
    }

    /// Returns the entry that [`Array::lookup`] found.
    #[inline]
    pub fn entry_mut(&mut self, at: usize) -> &mut T {
        &mut self.entries[at]
    }

    /// Fills an entry with a new key, in free room or in place of another. Returns its place; `None` if the array has
    /// no entries at all.
    #[inline]
    pub fn add(&mut self, key: u64, entry: &T) -> Option<usize> {
        if self.sets == 0 {
            return None;
        }
        if self.keys.is_empty() {
            self.allocate();
        }
        debug_assert!(self.place(key).is_none(), "held twice");
        let set = self.set(key);
        let way = self.free(set).unwrap_or_else(|| self.victim(set));
        let at = set * self.ways + way;
        let before = self.keys[at];
        if before == 0 {
            self.live += 1;
        }
        self.keys[at] = key;
        self.entries[at] = *entry;
        if !self.hints.is_empty() {
            if before != 0 {
                self.hints[Self::hint(before)].count -= 1;
            }
            let hint = &mut self.hints[Self::hint(key)];
            hint.count += 1;
            hint.way = way as u16;
        }
        self.touch(set, way);
        Some(at)
    }

    /// Returns an empty way of a set.
    #[inline]
    fn free(&self, set: usize) -> Option<usize> {
        if self.live == self.keys.len() {
            return None;
        }
        let keys = &self.keys[set * self.ways..][..self.ways];
        keys.iter().position(|&held| held == 0)
    }

    /// Returns the way to replace in a full set.
    fn victim(&self, set: usize) -> usize {
        match self.replacement {
            Replacement::Lru => {
                let used = &self.used[set * self.ways..][..self.ways];
                let age = |way: &usize| self.clock.wrapping_sub(used[*way]);
                (0..self.ways).max_by_key(age).unwrap_or(0)
            }
            Replacement::PseudoLru if self.words == 1 => {
                let way = self.recent[set].trailing_ones() as usize;
                way.min(self.ways - 1)
            }
            Replacement::PseudoLru => {
                let recent = &self.recent[set * self.words..][..self.words];
                let unused = recent.iter().enumerate().find(|&(_, &word)| word != u64::MAX);
                let way = unused.map_or(0, |(at, word)| 64 * at + word.trailing_ones() as usize);
                way.min(self.ways - 1)
            }
        }
    }

    /// Drops the entry at a place.
    #[inline]
    pub fn drop_at(&mut self, at: usize) {
        if !self.hints.is_empty() {
            self.hints[Self::hint(self.keys[at])].count -= 1;
        }
        self.keys[at] = 0;
        self.live -= 1;
    }

    /// Drops entries whose key `which` accepts.
    pub fn drop_where(&mut self, which: impl Fn(u64) -> bool) {
        if self.live == 0 {
            return;
        }
        for at in 0..self.keys.len() {
            if self.keys[at] != 0 && which(self.keys[at]) {
                self.drop_at(at);
            }
        }
    }

    /// Drops the entries with keys from `first` to `last`, which differ only in their numbers.
    pub fn drop_between(&mut self, first: u64, last: u64) {
        if self.live == 0 {
            return;
        }
        if last - first < self.keys.len() as u64 {
            for key in first..=last {
                if let Some(at) = self.find(key) {
                    self.drop_at(at);
                }
            }
        } else {
            self.drop_where(|held| (first..=last).contains(&held));
        }
    }

    /// Drops everything.
    pub fn drop_all(&mut self) {
        if self.live > 0 {
            self.keys.fill(0);
            self.hints.fill(Hint::default());
            self.live = 0;
        }
    }

    /// Returns the valid entries with their keys.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> + '_ {
        let valid = self.keys.iter().zip(&self.entries);
        valid.filter(|&(&key, _)| key != 0).map(|(&key, entry)| (key, entry))
    }
}
