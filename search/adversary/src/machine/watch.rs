//! Remembers the words that a CPU has read, so that a waiting loop needn't be repeated before one of them changes.
//!
//! A CPU reads all the time, but waits only now and then. So reads are only noted in order, and the notes are
//! [processed](Watch::take_notes) when the CPU reaches a waiting loop. Most notes are never used.

use crate::word::AdversaryWord;
use std::hash::Hash;
use std::ops::Range;

/// The number of words that we remember. Only code outside loops reads more.
const WORDS: usize = 24;

/// The set of all their places.
const ALL: u32 = (1 << WORDS) - 1;

/// How many iterations of loops a changed word may cause. The change concerns the innermost loop that reads the word,
/// which may be an outer one. So one iteration may not be enough.
const TURNS: u8 = 2;

/// The words that a CPU has read recently, with the values found.
///
/// Every load searches for a word, so the search must be fast. We divide words into a few kinds by address, and know
/// one place for each kind.
pub(super) struct Watch {
    count: usize,
    /// The address from which distances to words are measured.
    origin: usize,
    /// The addresses where programs allocate, if known.
    heap: Range<usize>,
    words: [*const AdversaryWord; WORDS],
    seen: [u64; WORDS],
    turns: [u8; WORDS],
    /// The order in which words are dropped ([`Watch::key`]).
    keys: [u64; WORDS],
    /// The words that were read since the last iteration of a loop, as bits. They stay.
    fresh: u32,
    /// The words that no longer hold the value that the CPU has read, as bits.
    changed: u32,
    /// Whether a word that should stay had to be dropped.
    overflowed: bool,
    /// The number of words of each kind.
    kinds: [u8; KINDS],
    /// The place of a word of each kind, if there is one.
    places: [u8; KINDS],
    /// Reads that aren't processed yet, oldest first.
    notes: Box<[Note; NOTES]>,
    noted: usize,
}

/// Words that pass through one place, one after the other.
///
/// If everything remembered was read since the last iteration, a new word takes the place of the one before, as long as
/// it is itself the next to drop. This makes it quick to read a whole table.
struct PassingWord {
    place: usize,
    /// The greatest key of all other words.
    others: u64,
    /// The last word added, which isn't in its place yet.
    word: *const AdversaryWord,
    seen: u64,
}

/// The number of notes after which we process them in any case.
const NOTES: usize = 256;

/// An operation of a CPU on a word. It fits into two words of the host, because a run writes one for each operation.
#[derive(Clone, Copy)]
struct Note {
    /// The word, with the operation in the bits below its alignment.
    word: *const AdversaryWord,
    value: u64,
}

/// The CPU has read the value.
const READ: usize = 0;
/// The CPU has stored the value, so it doesn't wait for it.
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

/// The number of bits of a key that contain a place.
const PLACE_BITS: u32 = 5;
const _: () = assert!(WORDS <= 1 << PLACE_BITS);
/// The number of bits for a distance in words: enough for any two addresses of a process.
const DISTANCE_BITS: u32 = 48;
/// The position of the iterations above a key: after its last bit, which marks allocated words.
const TURNS_SHIFT: u32 = DISTANCE_BITS + PLACE_BITS + 1;

/// Returns the place with the greatest key.
#[inline]
fn greatest(keys: [u64; WORDS]) -> usize {
    // We compare four at a time, independently of each other, so that the host can do so in parallel.
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

    /// Forgets everything. `origin` is the address of the tables' first word, `heap` is where programs allocate.
    pub(super) fn clear(&mut self, origin: usize, heap: Range<usize>) {
        self.origin = origin;
        self.heap = heap;
        self.forget_all();
    }

    /// Forgets the words that the CPU has read.
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

    /// Notes that the CPU has read `value` from a word, which may hold another one by now.
    #[inline]
    pub(super) fn read(&mut self, word: *const AdversaryWord, value: u64) {
        self.note(Note::of(READ, word, value));
    }

    /// Notes that the CPU has changed a word, or will when its store becomes visible.
    #[inline]
    pub(super) fn wrote(&mut self, word: *const AdversaryWord, value: u64) {
        self.note(Note::of(WROTE, word, value));
    }

    /// Forgets a dropped word.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        // A waiting CPU has no notes, because we need the values for which it waits up to date at all times.
        match self.noted == 0 {
            true => self.remove(word),
            false => self.note(Note::of(GONE, word, 0)),
        }
    }

    /// Processes the notes. Until the next note, [`Watch::written`] keeps the result up to date.
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
            // SAFETY: none of the remaining words was dropped, because the note about that would have removed it.
            if unsafe { (**word).peek() } != *seen {
                self.changed |= bit;
            }
            bit <<= 1;
        }
    }

    #[inline]
    fn take_read(
        &mut self,
        word: *const AdversaryWord,
        value: u64,
        passing: &mut Option<PassingWord>,
    ) {
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

    /// Makes the word at a place a passing one, if it would be dropped next while all words are fresh. From then on its
    /// place isn't known.
    fn pass(&mut self, place: usize) -> Option<PassingWord> {
        let mut keys = self.keys;
        let key = std::mem::take(&mut keys[place]);
        let others = keys[greatest(keys)];
        if key < others {
            return None;
        }
        self.lose(place);
        Some(PassingWord {
            place,
            others,
            word: std::mem::replace(&mut self.words[place], std::ptr::null()),
            seen: self.seen[place],
        })
    }

    /// Puts the last passing word into its place.
    fn flush_pending(&mut self, passing: Option<PassingWord>) {
        if let Some(PassingWord { place, word, seen, .. }) = passing {
            self.put(place, word);
            self.seen[place] = seen;
        }
    }

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

    /// Records that a word holds `value` from now on. Returns whether the CPU has read the word.
    #[inline]
    pub(super) fn written(&mut self, word: *const AdversaryWord, value: u64) -> bool {
        let place = self.place(word);
        if let Some(place) = place {
            let changed = u32::from(value != self.seen[place]);
            self.changed = self.changed & !(1 << place) | changed << place;
        }
        place.is_some()
    }

    /// Returns a number for a word's address, which doesn't depend on where the host places memory. Allocated words
    /// come last, and words of each kind have the same distance from the tables in every run. The lowest bits are the
    /// word's place here.
    #[inline]
    fn key(&self, word: *const AdversaryWord, place: usize) -> u64 {
        let distance = word.addr().wrapping_sub(self.origin) / align_of::<AdversaryWord>();
        let distance = distance as u64 & ((1 << DISTANCE_BITS) - 1);
        let allocated = u64::from(self.heap.contains(&word.addr()));
        (allocated << DISTANCE_BITS | distance) << PLACE_BITS | place as u64
    }

    /// Makes room for a word. Returns its place.
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

    /// Returns the place of the word to drop when there is no room. Words that the present loop has read stay. The
    /// choice depends neither on the order of reads, which isn't part of the state, nor on where the host places
    /// memory: words of tables, allocated words and others each have their own region, and the order of the regions is
    /// fixed here.
    #[inline]
    fn dispensable(&self) -> usize {
        if self.fresh == ALL {
            // None of them has caused an iteration since they were read.
            return greatest(self.keys);
        }
        greatest(std::array::from_fn(|place| {
            let goes = u64::from(self.fresh >> place & 1).wrapping_sub(1);
            (u64::from(self.turns[place]) << TURNS_SHIFT | self.keys[place]) & goes
        }))
    }

    /// Returns the places of words that no longer hold the value that the CPU has read.
    #[inline]
    fn places_changed(&self) -> impl Iterator<Item = usize> + use<> {
        let mut left = self.changed;
        std::iter::from_fn(move || {
            let place = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (place < WORDS).then_some(place)
        })
    }

    /// Returns the words that no longer hold the value that the CPU has read.
    #[inline]
    pub(super) fn changed(&self) -> impl Iterator<Item = *const AdversaryWord> + '_ {
        self.places_changed().map(|place| self.words[place])
    }

    /// Counts an iteration of the CPU's loop.
    pub(super) fn turn(&mut self) {
        for place in self.places_changed() {
            self.turns[place] += 1;
        }
        if self.places_changed().any(|place| self.turns[place] >= TURNS) {
            self.retain(|watch, place| watch.turns[place] < TURNS);
        }
        self.fresh = 0;
        self.overflowed = false;
    }

    /// Returns whether the CPU has read more words since the last iteration than fit here. Then it repeats the loop
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

    /// Returns the state that affects the CPU's next actions.
    pub(super) fn state(&self) -> impl Iterator<Item = impl Hash> + '_ {
        // It matters which words are fresh only if one must be dropped.
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
        assert!(passed > 1000, "{passed} rounds read more than is remembered");
    }
}
