//! Holds a CPU's store buffer: stores and invalidations that others do not see yet.
//!
//! The buffer has a few places. Any store in a place may become visible next, if nothing orders it after another. On
//! machines that reorder, stores wait without limit: those without a place wait [behind](StoreBuffer::behind) until one
//! is free.

use crate::action::BUFFER;
use crate::oracle::{Moment, UsedTranslation};
use crate::word::{AdversaryWord, FRAME_WORDS};
use quell::{Frame, Invalidation};
use std::cell::Cell;
use std::collections::VecDeque;

/// The effect of a buffered operation.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// A store to a word.
    Word(*const AdversaryWord),
    /// Content that the kernel has written into frames through its own mapping.
    Fill(Fill),
    /// A store of a program, through a translation.
    Content { used: UsedTranslation, word: usize },
    /// An invalidation that this CPU has issued. It affects everything that this CPU does later, but a store reaches
    /// others after it only if something orders the store.
    Invalidation { what: Invalidation, sent: Moment },
}

impl Target {
    /// Returns whether both are stores to the same place.
    pub(super) fn is_same(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Word(one), Target::Word(other)) => std::ptr::eq(*one, *other),
            (Target::Content { used: one, word: a }, Target::Content { used: other, word: b }) => {
                one.frame == other.frame && a == b
            }
            _ => false,
        }
    }

    /// Returns whether it is a store to this word.
    #[inline]
    pub(super) fn is_word(&self, word: *const AdversaryWord) -> bool {
        matches!(self, Target::Word(other) if std::ptr::eq(*other, word))
    }
}

/// Content that the kernel writes into frames with one operation. All of it becomes visible at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// The first frame.
    pub(crate) first: u32,
    /// The number of frames, which all get the same content.
    pub(crate) frames: u32,
    /// The words that are written.
    pub(crate) words: [Option<u64>; FRAME_WORDS],
    /// Whether the frames are zeroed as a whole. Then the words of tables in these frames are, too.
    pub(crate) zeroes: bool,
}

impl Fill {
    pub(crate) fn of(frame: Frame, words: [Option<u64>; FRAME_WORDS]) -> Fill {
        Fill { first: frame.0 as u32, frames: 1, words, zeroes: false }
    }

    pub(super) fn holds(&self, frame: u32) -> bool {
        frame.wrapping_sub(self.first) < self.frames
    }

    /// Returns whether both write a common word of a common frame.
    pub(super) fn meets(&self, other: &Fill) -> bool {
        let words = self.words.iter().zip(&other.words);
        let apart = self.first.saturating_add(self.frames) <= other.first
            || other.first.saturating_add(other.frames) <= self.first;
        !apart && words.into_iter().any(|(mine, theirs)| mine.is_some() && theirs.is_some())
    }
}

/// A buffered operation.
#[derive(Clone, Copy)]
pub(super) struct BufferedOp {
    pub(super) target: Target,
    pub(super) value: u64,
    /// Stores of a lower epoch become visible first.
    pub(super) epoch: u32,
    pub(super) release: bool,
    pub(super) sequential: bool,
    /// Its number in program order, among the operations buffered with it.
    pub(super) order: u32,
    pub(super) issued: Moment,
    /// Whether it fills a frame that no entry maps. A CPU that sees an entry written later must then see the content.
    pub(super) promised: bool,
}

/// The store buffer of a CPU.
pub(super) struct StoreBuffer {
    places: [Option<BufferedOp>; BUFFER],
    /// The places in use, as bits.
    taken: u8,
    /// The places whose stores are known to wait for no earlier one, as bits. They stay valid, because earlier stores
    /// only become fewer.
    unhindered: Cell<u8>,
    /// The stores without a place, oldest first. It's empty unless all places are in use.
    behind: VecDeque<BufferedOp>,
    /// A summary of everything added since the buffer was last empty.
    came: BufferSummary,
    next_order: u32,
}

/// A summary of the operations added to a buffer.
///
/// A buffer may hold hundreds of stores to a table and is searched before nearly every operation, so we need a quick
/// answer.
#[derive(Clone, Copy, Default)]
struct BufferSummary {
    /// The kinds of words that were stored to, as bits.
    words: [u64; KINDS / 64],
    /// Whether anything was added except stores to words that aren't sequentially consistent.
    others: bool,
}

/// The number of kinds of words. It exceeds the number of a table's entries, so these all have different kinds.
const KINDS: usize = 1024;

impl BufferSummary {
    /// Returns the position of a word's bit.
    #[inline]
    fn bit(word: *const AdversaryWord) -> (usize, u64) {
        let kind = word.addr() / align_of::<AdversaryWord>() % KINDS;
        (kind / 64, 1 << (kind % 64))
    }

    #[inline]
    fn note(&mut self, word: *const AdversaryWord) {
        let (at, bit) = BufferSummary::bit(word);
        self.words[at] |= bit;
    }

    /// Returns whether a store to this word may have been added.
    #[inline]
    fn may_hold(&self, word: *const AdversaryWord) -> bool {
        let (at, bit) = BufferSummary::bit(word);
        self.words[at] & bit != 0
    }
}

const _: () = assert!(BUFFER == 8, "a bit for each place");

impl StoreBuffer {
    pub(super) fn new() -> Self {
        StoreBuffer {
            places: [None; BUFFER],
            taken: 0,
            unhindered: Cell::new(0),
            behind: VecDeque::new(),
            came: BufferSummary::default(),
            next_order: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.taken = 0;
        self.unhindered.set(0);
        self.behind.clear();
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.taken == u8::MAX
    }

    /// Returns each buffered operation with its place. Operations without one get the numbers after the last place.
    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, &BufferedOp)> {
        self.placed().chain((BUFFER..).zip(&self.behind))
    }

    /// Returns each operation that has a place, with the place.
    #[inline]
    pub(super) fn placed(&self) -> impl Iterator<Item = (usize, &BufferedOp)> {
        let mut left = self.taken;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            Some((place, self.places[place].as_ref()?))
        })
    }

    /// Returns whether it holds exactly one operation.
    #[inline]
    pub(super) fn holds_one(&self) -> bool {
        self.taken.is_power_of_two()
    }

    /// Returns the oldest buffered operation and its place, which it always has.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(usize, &BufferedOp)> {
        if self.holds_one() {
            return self.placed().next();
        }
        self.placed().min_by_key(|(_, entry)| entry.order)
    }

    /// Returns whether no earlier operation hinders the one in this place. `hinders` returns whether an earlier
    /// operation does.
    pub(super) fn is_unhindered(
        &self,
        (place, entry): (usize, &BufferedOp),
        hinders: impl Fn(&BufferedOp) -> bool,
    ) -> bool {
        let is_hindered = || {
            let earlier = |other: &&BufferedOp| other.order < entry.order;
            let placed = self.placed().map(|(_, entry)| entry).filter(earlier);
            let behind = self.behind.iter().take_while(earlier);
            placed.chain(behind).any(&hinders)
        };
        let known = self.unhindered.get();
        if known & 1 << place != 0 {
            assert!(!cfg!(test) || !is_hindered(), "what is before it only becomes less");
            return true;
        }
        let hindered = is_hindered();
        if !hindered {
            self.unhindered.set(known | 1 << place);
        }
        !hindered
    }

    /// Returns whether nothing buffered belongs to an earlier epoch than `epoch`, the latest one.
    #[inline]
    pub(super) fn is_of_epoch(&self, epoch: u32) -> bool {
        // Epochs only rise, so the oldest operation has the lowest.
        self.oldest().is_none_or(|(_, oldest)| oldest.epoch == epoch)
    }

    /// Returns everything buffered, unless all of it is known to be stores to words that aren't sequentially
    /// consistent.
    #[inline]
    pub(super) fn others(&self) -> impl Iterator<Item = &BufferedOp> {
        let any = self.came.others && !self.is_empty();
        let those = any.then(|| self.entries()).into_iter().flatten();
        those.map(|(_, entry)| entry)
    }

    #[inline]
    pub(super) fn holds(&self, word: *const AdversaryWord) -> bool {
        let is_there = || self.entries().any(|(_, entry)| entry.target.is_word(word));
        if self.is_empty() || !self.came.may_hold(word) {
            assert!(!cfg!(test) || !is_there(), "what has come was noted");
            return false;
        }
        is_there()
    }

    /// Returns whether nothing buffered can affect a load of this word.
    #[inline]
    pub(super) fn leaves_alone(&self, word: *const AdversaryWord) -> bool {
        self.is_empty() || !self.came.others && !self.came.may_hold(word)
    }

    /// Returns the store that a load of this word sees: the last one to the word, or a fill that zeroes `frame`, which
    /// contains it.
    #[inline]
    pub(super) fn newest(
        &self,
        word: *const AdversaryWord,
        frame: impl Fn() -> Option<u32>,
    ) -> Option<&BufferedOp> {
        if self.leaves_alone(word) {
            return None;
        }
        let reaches = |entry: &&BufferedOp| match entry.target {
            Target::Word(other) => std::ptr::eq(other, word),
            Target::Fill(fill) => fill.zeroes && frame().is_some_and(|f| fill.holds(f)),
            _ => false,
        };
        let those = self.entries().map(|(_, entry)| entry);
        those.filter(reaches).max_by_key(|e| e.order)
    }

    /// Returns the operation in a place.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&BufferedOp> {
        match self.taken & 1 << place {
            0 => None,
            _ => self.places[place].as_ref(),
        }
    }

    /// Adds an operation and sets its order.
    ///
    /// If all places are in use, the operation takes place `instead`, whose previous operation moves behind. If there
    /// is no such place, the new operation moves behind itself. The oldest operation always keeps its place, because
    /// everything may have to wait for it.
    pub(super) fn push(&mut self, mut entry: BufferedOp, instead: usize) {
        self.next_order += 1;
        if self.is_empty() {
            self.next_order = 0;
            self.came = BufferSummary::default();
        }
        entry.order = self.next_order;
        match entry.target {
            Target::Word(word) => {
                self.came.note(word);
                self.came.others |= entry.sequential;
            }
            _ => self.came.others = true,
        }
        if self.is_full() {
            let oldest = self.oldest().map(|(_, entry)| entry.order);
            let place = self.places.get_mut(instead).and_then(Option::as_mut);
            let place = place.filter(|place| Some(place.order) != oldest);
            let last = place.map_or(entry, |place| std::mem::replace(place, entry));
            if last.order != entry.order {
                self.unhindered.set(self.unhindered.get() & !(1 << instead));
            }
            let at = self.behind.partition_point(|e| e.order < last.order);
            self.behind.insert(at, last);
            return;
        }
        self.put(entry);
    }

    fn put(&mut self, entry: BufferedOp) {
        let place = self.taken.trailing_ones() as usize;
        self.places[place] = Some(entry);
        self.taken |= 1 << place;
    }

    /// Removes the operation in a place.
    pub(super) fn take(&mut self, place: usize) -> Option<BufferedOp> {
        let entry = self.get(place).copied();
        self.free(place);
        entry
    }

    /// Frees a place for the operation that has waited longest for one.
    fn free(&mut self, place: usize) {
        self.taken &= !(1 << place);
        self.unhindered.set(self.unhindered.get() & !(1 << place));
        if !self.is_full()
            && let Some(next) = self.behind.pop_front()
        {
            self.put(next);
        }
    }

    /// Forgets a dropped word and the stores to it.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        if !self.holds(word) {
            return;
        }
        self.behind.retain(|entry| !entry.target.is_word(word));
        for place in 0..BUFFER {
            if self.get(place).is_some_and(|e| e.target.is_word(word)) {
                self.free(place);
            }
        }
    }
}
