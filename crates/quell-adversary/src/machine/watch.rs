//! What a CPU has read: it need not go round a waiting loop before something of that has changed.

use crate::cell::AdversaryWord;
use std::hash::Hash;
use std::ops::Range;

/// How many words are remembered; more have been read only by code that is not in a loop.
const WORDS: usize = 24;

/// A bit for each of them.
const ALL: u32 = (1 << WORDS) - 1;

/// How many turns of loops a word may cause. A change concerns the innermost loop that reads the
/// word, which may be an outer one: so it is good for a few turns, not for one alone.
const TURNS: u8 = 2;

/// The words that a CPU has read lately, with what it found there.
///
/// They stand in the order of their keys: a word is looked for, and one may have to go, at every load.
#[derive(Clone)]
pub(super) struct Watch {
    count: usize,
    /// Where distances to words are measured from.
    origin: usize,
    /// Where programs allocate, if that is known.
    heap: Range<usize>,
    words: [*const AdversaryWord; WORDS],
    seen: [u64; WORDS],
    turns: [u8; WORDS],
    /// Which of the words go first, see [`Watch::key`]. Ascending.
    keys: [u64; WORDS],
    /// A bit for each word that was read since the last turn of a loop: they stay.
    fresh: u32,
    /// Whether one of those had to go nevertheless.
    overflowed: bool,
    /// How many of the words have an address of each kind: most that are looked for are not there.
    kinds: [u8; KINDS],
}

/// How many kinds of addresses are told apart.
const KINDS: usize = 64;

#[inline]
fn kind(word: *const AdversaryWord) -> usize {
    word as usize / size_of::<AdversaryWord>() % KINDS
}

impl Watch {
    pub(super) fn new() -> Self {
        Watch {
            count: 0,
            origin: 0,
            heap: 0..0,
            words: [std::ptr::null(); WORDS],
            seen: [0; WORDS],
            turns: [0; WORDS],
            keys: [0; WORDS],
            fresh: 0,
            overflowed: false,
            kinds: [0; KINDS],
        }
    }

    /// Forgets all. `origin` is where the words of the tables begin, `heap` is where programs allocate.
    pub(super) fn clear(&mut self, origin: usize, heap: Range<usize>) {
        self.count = 0;
        self.fresh = 0;
        self.overflowed = false;
        self.origin = origin;
        self.heap = heap;
        self.kinds = [0; KINDS];
    }

    /// Where a word with this key stands, or would.
    #[inline]
    fn rank(&self, key: u64) -> usize {
        self.keys[..self.count].partition_point(|&known| known < key)
    }

    #[inline]
    fn place(&self, word: *const AdversaryWord, key: u64) -> Option<usize> {
        if self.kinds[kind(word)] == 0 {
            return None;
        }
        let place = self.rank(key);
        (place < self.count && std::ptr::eq(self.words[place], word)).then_some(place)
    }

    /// Where a word lies, as a number that does not depend on where the host has put things: words that programs
    /// have allocated come last, and each kind lies at a distance from the tables that is the same in every run.
    #[inline]
    fn key(&self, word: *const AdversaryWord) -> u64 {
        let distance = word.addr().wrapping_sub(self.origin) / align_of::<AdversaryWord>();
        u64::from(self.heap.contains(&word.addr())) << 63 | distance as u64
    }

    /// The CPU has read `value` from a word.
    #[inline]
    pub(super) fn read(&mut self, word: *const AdversaryWord, value: u64) {
        let key = self.key(word);
        if let Some(known) = self.place(word, key) {
            self.fresh |= 1 << known;
            self.seen[known] = value;
            self.turns[known] = 0;
            return;
        }
        let gap = if self.count < WORDS {
            self.count += 1;
            self.count - 1
        } else {
            let gap = self.dispensable();
            self.overflowed |= self.fresh >> gap & 1 != 0;
            self.kinds[kind(self.words[gap])] -= 1;
            gap
        };
        self.kinds[kind(word)] += 1;
        let place = self.make_room(key, gap);
        self.words[place] = word;
        self.keys[place] = key;
        self.seen[place] = value;
        self.turns[place] = 0;
        self.fresh |= 1 << place;
    }

    /// Moves what stands between the place where a word with this key belongs and a place that is free, so that
    /// the former is free.
    #[inline]
    fn make_room(&mut self, key: u64, gap: usize) -> usize {
        let mut place = gap;
        while place > 0 && self.keys[place - 1] > key {
            self.shift(place - 1, place);
            place -= 1;
        }
        while place + 1 < self.count && self.keys[place + 1] < key {
            self.shift(place + 1, place);
            place += 1;
        }
        place
    }

    #[inline]
    fn shift(&mut self, from: usize, to: usize) {
        self.words[to] = self.words[from];
        self.keys[to] = self.keys[from];
        self.seen[to] = self.seen[from];
        self.turns[to] = self.turns[from];
        self.fresh = self.fresh & !(1 << to) | (self.fresh >> from & 1) << to;
    }

    /// The word that goes where there is no room: what the loop has read that the CPU goes round stays. Else it does
    /// not depend on the order in which they came, which is not state, nor on where the host has put them: words of
    /// tables, words that programs have allocated and others are each in one place, and which of those comes first is
    /// decided here.
    #[inline]
    fn dispensable(&self) -> usize {
        // Almost always.
        if self.fresh == ALL && self.turns == [0; WORDS] {
            return WORDS - 1;
        }
        let stays = |place: &usize| self.fresh != ALL && self.fresh >> place & 1 != 0;
        let others = (0..WORDS).filter(|place| !stays(place));
        others
            .max_by_key(|&place| (self.turns[place], self.keys[place]))
            .unwrap_or(0)
    }

    /// The CPU has changed a word: that is no news to it.
    #[inline]
    pub(super) fn wrote(&mut self, word: *const AdversaryWord, value: u64) {
        if let Some(place) = self.place(word, self.key(word)) {
            self.seen[place] = value;
        }
    }

    #[inline]
    fn has_changed(&self, place: usize) -> bool {
        // SAFETY: words take themselves off the list when they are dropped.
        let now = unsafe { (*self.words[place]).peek() };
        now != self.seen[place]
    }

    /// The words that hold something else than the CPU has read there.
    #[inline]
    pub(super) fn changed(&self) -> impl Iterator<Item = *const AdversaryWord> + '_ {
        (0..self.count)
            .filter(|&place| self.has_changed(place))
            .map(|place| self.words[place])
    }

    /// The CPU goes round its loop once.
    pub(super) fn turn(&mut self) {
        for place in 0..self.count {
            self.turns[place] += u8::from(self.has_changed(place));
        }
        self.retain(|watch, place| watch.turns[place] < TURNS);
        self.fresh = 0;
        self.overflowed = false;
    }

    /// Whether the CPU has read more since the last turn of a loop than is remembered. It then goes round once more, since
    /// what the loop waits for may be among the words that were forgotten, and after that it is not.
    #[inline]
    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// A word goes.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        if self.place(word, self.key(word)).is_some() {
            self.retain(|watch, place| !std::ptr::eq(watch.words[place], word));
        }
    }

    fn retain(&mut self, keeps: impl Fn(&Self, usize) -> bool) {
        let mut kept = 0;
        let fresh = std::mem::take(&mut self.fresh);
        for place in 0..self.count {
            if keeps(self, place) {
                self.shift(place, kept);
                self.fresh |= (fresh >> place & 1) << kept;
                kept += 1;
            } else {
                self.kinds[kind(self.words[place])] -= 1;
            }
        }
        self.count = kept;
    }

    /// What of this matters to what the CPU does next.
    pub(super) fn state(&self) -> impl Iterator<Item = impl Hash> + '_ {
        // Which of them are fresh matters where one has to go.
        let fresh = if self.count == WORDS { self.fresh } else { 0 };
        (0..self.count).map(move |place| {
            let changed = self.has_changed(place).then_some(self.seen[place]);
            let stays = fresh >> place & 1;
            let turns = self.turns[place];
            (self.words[place], turns, changed, stays, self.overflowed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_loop_reads_stays_however_much_was_read_before() {
        let words: Vec<_> = (0..WORDS as u64 + 3).map(AdversaryWord::holding).collect();
        let mut watch = Watch::new();
        watch.clear(words.as_ptr().addr(), 0..0);
        let (before, waited_for) = words.split_at(WORDS);
        let read = |watch: &mut Watch, words: &[AdversaryWord]| {
            for word in words {
                watch.read(word, word.peek());
            }
        };
        read(&mut watch, before);
        watch.turn();
        read(&mut watch, waited_for);
        for word in waited_for {
            word.poke(99);
        }
        assert_eq!(watch.changed().count(), waited_for.len());
    }

    #[test]
    fn a_loop_that_may_have_been_forgotten_is_gone_round_once_more() {
        let words: Vec<_> = (0..=WORDS as u64).map(AdversaryWord::holding).collect();
        let mut watch = Watch::new();
        watch.clear(words.as_ptr().addr(), 0..0);
        let (last, before) = words.split_last().expect("some");
        before.iter().for_each(|word| watch.read(word, word.peek()));
        assert!(!watch.has_overflowed());
        watch.read(last, last.peek());
        assert!(watch.has_overflowed());
        watch.turn();
        watch.read(&words[0], words[0].peek());
        assert!(!watch.has_overflowed());
    }
}
