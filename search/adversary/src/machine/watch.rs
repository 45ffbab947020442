//! Remembers what a CPU has read: it need not repeat a waiting loop before any of it has changed.
//!
//! A CPU reads all the time and waits now and then. So reads are only noted in order, and
//! [processed](Watch::take_notes) when the CPU reaches a waiting loop: most notes are never used.

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

/// The words that a CPU has read recently, with the values found.
///
/// Every load searches for a word, so the search must be fast: words have a few kinds by address, and one place is
/// known for each kind.
pub(super) struct Watch {
    count: usize,
    /// Where distances to words are measured from.
    origin: usize,
    /// Where programs allocate, if that is known.
    heap: Range<usize>,
    words: [*const AdversaryWord; WORDS],
    seen: [u64; WORDS],
    turns: [u8; WORDS],
    /// Which of the words go first, see [`Watch::key`].
    keys: [u64; WORDS],
    /// A bit for each word that was read since the last turn of a loop: they stay.
    fresh: u32,
    /// A bit for each word that holds something else than the CPU has read there.
    changed: u32,
    /// Whether a word that should stay had to be dropped.
    overflowed: bool,
    /// How many of the words have an address of each kind.
    kinds: [u8; KINDS],
    /// The place of a word of each kind, if there is one.
    places: [u8; KINDS],
    /// Later reads, oldest first.
    notes: Box<[Note; NOTES]>,
    /// How many of them there are.
    noted: usize,
}

/// Words that a CPU reads one after the other where all that is remembered was read since its last turn: each takes the
/// place of the one before, as long as it is itself the next to go. So it is with a CPU that reads a whole table.
struct Passing {
    place: usize,
    /// The greatest key of all others that are remembered.
    others: u64,
    /// The last word added; it is not in its place yet.
    word: *const AdversaryWord,
    seen: u64,
}

/// How many notes are taken before they are taken in, in any case.
const NOTES: usize = 256;

/// An operation of a CPU on a word. Two words of the host, because a run writes one for each operation.
#[derive(Clone, Copy)]
struct Note {
    /// The word, with the operation in the bits below its alignment.
    word: *const AdversaryWord,
    value: u64,
}

/// It has read the value there.
const READ: usize = 0;
/// It has stored the value there: that is no news to it.
const WROTE: usize = 1;
/// The word was dropped.
const GONE: usize = 2;
const _: () = assert!(GONE < align_of::<AdversaryWord>());

impl Note {
    #[inline]
    fn of(done: usize, word: *const AdversaryWord, value: u64) -> Self {
        let word = word.map_addr(|word| word | done);
        Note { word, value }
    }

    #[inline]
    fn parts(self) -> (usize, *const AdversaryWord, u64) {
        let mask = align_of::<AdversaryWord>() - 1;
        let word = self.word.map_addr(|word| word & !mask);
        (self.word.addr() & mask, word, self.value)
    }
}

/// The number of kinds of addresses.
const KINDS: usize = 64;

/// Bits of a key for a place.
const PLACE_BITS: u32 = 5;
const _: () = assert!(WORDS <= 1 << PLACE_BITS);
/// Bits for a distance in words: more than between any two addresses of a process.
const DISTANCE_BITS: u32 = 48;
/// The place of the turns beside a key: above its last bit, which marks allocated words.
const TURNS_SHIFT: u32 = DISTANCE_BITS + PLACE_BITS + 1;

/// The place of the greatest key.
#[inline]
fn greatest(keys: [u64; WORDS]) -> usize {
    // Four at a time, independent of each other.
    let mut greatest = [0; 4];
    for keys in keys.chunks_exact(4) {
        for (greatest, key) in greatest.iter_mut().zip(keys) {
            *greatest = (*key).max(*greatest);
        }
    }
    let greatest = greatest.into_iter().fold(0, u64::max);
    (greatest & ((1 << PLACE_BITS) - 1)) as usize
}

#[inline]
fn kind(word: *const AdversaryWord) -> usize {
    // Words are aligned to lines and pages: the differing bits of their addresses must reach the highest bits.
    (word.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize
        >> (usize::BITS - KINDS.ilog2())
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
            changed: 0,
            overflowed: false,
            kinds: [0; KINDS],
            places: [0; KINDS],
            notes: Box::new([Note::of(READ, std::ptr::null(), 0); NOTES]),
            noted: 0,
        }
    }

    /// Forgets all. `origin` is where the words of the tables begin, `heap` is where programs allocate.
    pub(super) fn clear(&mut self, origin: usize, heap: Range<usize>) {
        self.origin = origin;
        self.heap = heap;
        self.forget_all();
    }

    /// Forgets what the CPU has read.
    pub(super) fn forget_all(&mut self) {
        self.count = 0;
        self.fresh = 0;
        self.changed = 0;
        self.overflowed = false;
        self.kinds = [0; KINDS];
        self.noted = 0;
    }

    /// Returns whether the CPU has read nothing yet.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.noted == 0
    }

    /// Returns whether the notes must be processed before the next one.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.noted == NOTES
    }

    #[inline]
    fn note(&mut self, note: Note) {
        if self.is_full() {
            self.take_notes();
        }
        self.notes[self.noted % NOTES] = note;
        self.noted += 1;
    }

    /// The CPU has read `value` from a word, which may hold something else.
    #[inline]
    pub(super) fn read(&mut self, word: *const AdversaryWord, value: u64) {
        self.note(Note::of(READ, word, value));
    }

    /// The CPU has changed a word, or will when its store is visible.
    #[inline]
    pub(super) fn wrote(&mut self, word: *const AdversaryWord, value: u64) {
        self.note(Note::of(WROTE, word, value));
    }

    /// Forgets a dropped word.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        // A waiting CPU has no notes, because the values it waits for must be current at any time.
        match self.noted == 0 {
            true => self.remove(word),
            false => self.note(Note::of(GONE, word, 0)),
        }
    }

    /// Processes the notes. Until the next note [`Watch::written`] keeps the result up to date.
    pub(super) fn take_notes(&mut self) {
        let mut passing = None;
        for at in 0..self.noted {
            let (done, word, value) = self.notes[at].parts();
            match done {
                READ => self.take_read(word, value, &mut passing),
                WROTE => match &mut passing {
                    Some(passing) if std::ptr::eq(passing.word, word) => passing.seen = value,
                    _ => {
                        if let Some(place) = self.place(word) {
                            self.seen[place] = value;
                        }
                    }
                },
                _ => {
                    self.flush_pending(passing.take());
                    self.remove(word);
                }
            }
        }
        self.flush_pending(passing);
        self.noted = 0;
        let mut bit = 1;
        self.changed = 0;
        for (word, seen) in self.words.iter().zip(&self.seen).take(self.count) {
            // SAFETY: a dropped word is not among the remaining ones: its note was the last about it.
            if unsafe { (**word).peek() } != *seen {
                self.changed |= bit;
            }
            bit <<= 1;
        }
    }

    #[inline]
    fn take_read(&mut self, word: *const AdversaryWord, value: u64, passing: &mut Option<Passing>) {
        if let Some(passing) = passing
            && std::ptr::eq(passing.word, word)
        {
            passing.seen = value;
            return;
        }
        let known = self.place(word);
        if let (None, Some(passing)) = (known, &mut *passing)
            && self.key(word, passing.place) > passing.others
        {
            passing.word = word;
            passing.seen = value;
            return;
        }
        let place = known.unwrap_or_else(|| {
            self.flush_pending(passing.take());
            self.remember(word)
        });
        self.fresh |= 1 << place;
        self.seen[place] = value;
        self.turns[place] = 0;
        if known.is_none() && self.overflowed && self.fresh == ALL {
            *passing = self.pass(place);
        }
    }

    /// Records that the word at a place has replaced another, while all are fresh and it would be dropped next: from
    /// here on its place is not known.
    fn pass(&mut self, place: usize) -> Option<Passing> {
        let mut keys = self.keys;
        let key = std::mem::take(&mut keys[place]);
        let others = keys[greatest(keys)];
        if key < others {
            return None;
        }
        self.lose(place);
        Some(Passing {
            place,
            others,
            word: std::mem::replace(&mut self.words[place], std::ptr::null()),
            seen: self.seen[place],
        })
    }

    /// The last word that has passed stays.
    fn flush_pending(&mut self, passing: Option<Passing>) {
        if let Some(Passing {
            place, word, seen, ..
        }) = passing
        {
            self.put(place, word);
            self.seen[place] = seen;
        }
    }

    /// Returns the place of a word.
    #[inline(always)]
    fn place(&self, word: *const AdversaryWord) -> Option<usize> {
        let kind = kind(word);
        if self.kinds[kind] == 0 {
            return None;
        }
        let place = usize::from(self.places[kind]);
        if std::ptr::eq(self.words[place], word) {
            return Some(place);
        }
        match self.kinds[kind] {
            1 => None,
            _ => (0..self.count).find(|&place| std::ptr::eq(self.words[place], word)),
        }
    }

    /// A word holds `value` from now on; whether the CPU has read it.
    #[inline]
    pub(super) fn written(&mut self, word: *const AdversaryWord, value: u64) -> bool {
        let place = self.place(word);
        if let Some(place) = place {
            let changed = u32::from(value != self.seen[place]);
            self.changed = self.changed & !(1 << place) | changed << place;
        }
        place.is_some()
    }

    /// Returns a number for a word's address that does not depend on the host's placement: allocated words come last,
    /// and each kind is at the same distance from the tables in every run. The lowest bits are the word's place here.
    #[inline]
    fn key(&self, word: *const AdversaryWord, place: usize) -> u64 {
        let distance = word.addr().wrapping_sub(self.origin) / align_of::<AdversaryWord>();
        let distance = distance as u64 & ((1 << DISTANCE_BITS) - 1);
        let allocated = u64::from(self.heap.contains(&word.addr()));
        (allocated << DISTANCE_BITS | distance) << PLACE_BITS | place as u64
    }

    /// Makes room for a word; where.
    fn remember(&mut self, word: *const AdversaryWord) -> usize {
        let place = if self.count < WORDS {
            self.count += 1;
            self.count - 1
        } else {
            let place = self.dispensable();
            self.overflowed |= self.fresh >> place & 1 != 0;
            self.lose(place);
            place
        };
        self.put(place, word);
        place
    }

    /// Puts the word at a place.
    fn put(&mut self, place: usize, word: *const AdversaryWord) {
        self.words[place] = word;
        self.keys[place] = self.key(word, place);
        let kind = kind(word);
        self.kinds[kind] += 1;
        self.places[kind] = place as u8;
    }

    /// Drops the word at a place.
    fn lose(&mut self, place: usize) {
        let lost = kind(self.words[place]);
        self.kinds[lost] -= 1;
        if self.kinds[lost] > 0 && usize::from(self.places[lost]) == place {
            let mut others = (0..self.count).filter(|&other| other != place);
            let another = others.find(|&other| kind(self.words[other]) == lost);
            self.places[lost] = another.unwrap_or(place) as u8;
        }
    }

    /// Returns the word to drop when there is no room: words read by the present loop stay. The choice depends neither
    /// on the order of reads, which is not state, nor on the host's placement: words of tables, allocated words and
    /// others each have their own memory, and their order is fixed here.
    #[inline]
    fn dispensable(&self) -> usize {
        if self.fresh == ALL {
            // None of them has caused a turn since.
            return greatest(self.keys);
        }
        greatest(std::array::from_fn(|place| {
            let goes = u64::from(self.fresh >> place & 1).wrapping_sub(1);
            (u64::from(self.turns[place]) << TURNS_SHIFT | self.keys[place]) & goes
        }))
    }

    /// The places of the words that hold something else than the CPU has read there.
    #[inline]
    fn places_changed(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.changed;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (place < WORDS).then_some(place)
        })
    }

    /// The words that hold something else than the CPU has read there.
    #[inline]
    pub(super) fn changed(&self) -> impl Iterator<Item = *const AdversaryWord> + '_ {
        self.places_changed().map(|place| self.words[place])
    }

    /// Counts a turn of the CPU's loop.
    pub(super) fn turn(&mut self) {
        for place in self.places_changed() {
            self.turns[place] += 1;
        }
        if self
            .places_changed()
            .any(|place| self.turns[place] >= TURNS)
        {
            self.retain(|watch, place| watch.turns[place] < TURNS);
        }
        self.fresh = 0;
        self.overflowed = false;
    }

    /// Returns whether the CPU has read more since the last turn of a loop than fits here. Then it repeats the loop
    /// once more, because a forgotten word may be part of the condition.
    #[inline]
    pub(super) fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    fn remove(&mut self, word: *const AdversaryWord) {
        if self.place(word).is_some() {
            self.retain(|watch, place| !std::ptr::eq(watch.words[place], word));
        }
    }

    fn retain(&mut self, keeps: impl Fn(&Self, usize) -> bool) {
        let mut kept = 0;
        let fresh = std::mem::take(&mut self.fresh);
        let changed = std::mem::take(&mut self.changed);
        self.kinds = [0; KINDS];
        for place in 0..self.count {
            if keeps(self, place) {
                self.words[kept] = self.words[place];
                self.keys[kept] = self.key(self.words[kept], kept);
                self.seen[kept] = self.seen[place];
                self.turns[kept] = self.turns[place];
                self.fresh |= (fresh >> place & 1) << kept;
                self.changed |= (changed >> place & 1) << kept;
                let kind = kind(self.words[kept]);
                self.kinds[kind] += 1;
                self.places[kind] = kept as u8;
                kept += 1;
            }
        }
        self.count = kept;
    }

    /// Returns the part of this that affects the CPU's next actions.
    pub(super) fn state(&self) -> impl Iterator<Item = impl Hash> + '_ {
        // Which of them are fresh matters where one has to go.
        let fresh = if self.count == WORDS { self.fresh } else { 0 };
        (0..self.count).map(move |place| {
            let changed = (self.changed >> place & 1 != 0).then_some(self.seen[place]);
            let stays = fresh >> place & 1;
            let turns = self.turns[place];
            (self.words[place], turns, changed, stays, self.overflowed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Rng;
    use std::hash::{DefaultHasher, Hasher};

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
        watch.take_notes();
        watch.turn();
        read(&mut watch, waited_for);
        watch.take_notes();
        for word in waited_for {
            word.poke(99);
            assert!(watch.written(word, 99));
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
        watch.take_notes();
        assert!(!watch.has_overflowed());
        watch.read(last, last.peek());
        watch.take_notes();
        assert!(watch.has_overflowed());
        watch.turn();
        watch.read(&words[0], words[0].peek());
        watch.take_notes();
        assert!(!watch.has_overflowed());
    }

    #[test]
    fn many_words_that_pass_leave_what_one_after_the_other_leaves() {
        let words: Vec<_> = (0..90).map(AdversaryWord::holding).collect();
        let [mut at_once, mut one_by_one] = [(), ()].map(|()| {
            let mut watch = Watch::new();
            watch.clear(words.as_ptr().addr(), 0..0);
            watch
        });
        let state = |watch: &Watch| {
            let state = watch.state().map(|word| {
                let mut hasher = DefaultHasher::new();
                word.hash(&mut hasher);
                hasher.finish()
            });
            let mut state: Vec<_> = state.collect();
            state.sort_unstable();
            (state, watch.fresh.count_ones(), watch.overflowed)
        };
        let mut random = Rng::new(5);
        let mut passed = 0;
        for round in 0..4000 {
            let from = random.below(90) as usize;
            let length = 1 + random.below(80) as usize;
            for word in words.iter().cycle().skip(from).take(length) {
                let value = word.peek() + random.below(2);
                let note = |watch: &mut Watch, kind: u64| match kind {
                    0 => watch.note(Note::of(WROTE, word, value)),
                    1 => watch.note(Note::of(GONE, word, 0)),
                    _ => watch.note(Note::of(READ, word, value)),
                };
                let kind = random.below(20);
                note(&mut at_once, kind);
                note(&mut one_by_one, kind);
                one_by_one.take_notes();
            }
            at_once.take_notes();
            assert_eq!(state(&at_once), state(&one_by_one), "round {round}");
            passed += u32::from(at_once.overflowed);
            if random.below(3) == 0 {
                at_once.turn();
                one_by_one.turn();
            }
        }
        assert!(
            passed > 1000,
            "{passed} rounds read more than is remembered"
        );
    }
}
