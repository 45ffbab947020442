//! The store buffer of a CPU: what it has stored or invalidated and others do not see yet.
//!
//! A store in one of its places may become visible next. On machines that reorder, where stores wait without
//! bound, what finds no place waits [behind](StoreBuffer::behind) until one is free.

use crate::action::BUFFER;
use crate::cell::{AdversaryWord, FRAME_WORDS};
use crate::oracle::{Moment, Used};
use quell::{Frame, Invalidate};

/// What a buffered operation is about.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// A store to a word.
    Word(*const AdversaryWord),
    /// What the kernel has written into frames through its own mapping.
    Fill(Fill),
    /// A store of a program, through a translation.
    Content { used: Used, word: usize },
    /// An invalidation that this CPU has issued: it holds for all that this CPU does later, and a
    /// store reaches others after it only if something orders the store.
    Invalidation { what: Invalidate, sent: Moment },
}

impl Target {
    /// Whether both are stores to the same place.
    pub(super) fn is_same(&self, other: &Target) -> bool {
        match (self, other) {
            (Target::Word(one), Target::Word(other)) => std::ptr::eq(*one, *other),
            (
                Target::Content { used: one, word: a },
                Target::Content {
                    used: other,
                    word: b,
                },
            ) => one.frame == other.frame && a == b,
            _ => false,
        }
    }

    /// Whether it is a store to this word.
    #[inline]
    pub(super) fn is_word(&self, word: *const AdversaryWord) -> bool {
        matches!(self, Target::Word(other) if std::ptr::eq(*other, word))
    }
}

/// What the kernel writes into frames in one piece: it lands in one piece, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fill {
    /// The first frame.
    pub(crate) first: u32,
    /// How many frames get the same content.
    pub(crate) frames: u32,
    /// The content, as far as it is written.
    pub(crate) words: [Option<u64>; FRAME_WORDS],
    /// Whether the frames are zeroed, the words of the tables that they may become included.
    pub(crate) zeroes: bool,
}

impl Fill {
    /// What is written into one frame.
    pub(crate) fn of(frame: Frame, words: [Option<u64>; FRAME_WORDS]) -> Fill {
        Fill {
            first: frame.0 as u32,
            frames: 1,
            words,
            zeroes: false,
        }
    }

    pub(super) fn holds(&self, frame: u32) -> bool {
        frame.wrapping_sub(self.first) < self.frames
    }

    /// Whether both write the same content.
    pub(super) fn meets(&self, other: &Fill) -> bool {
        let words = self.words.iter().zip(&other.words);
        let apart = self.first.saturating_add(self.frames) <= other.first
            || other.first.saturating_add(other.frames) <= self.first;
        !apart
            && words
                .into_iter()
                .any(|(mine, theirs)| mine.is_some() && theirs.is_some())
    }
}

/// A buffered operation.
#[derive(Clone, Copy)]
pub(super) struct Buffered {
    pub(super) target: Target,
    pub(super) value: u64,
    /// Stores of a lower epoch go first.
    pub(super) epoch: u32,
    pub(super) release: bool,
    pub(super) sequential: bool,
    /// Its place in the order of the program, among those that were buffered with it.
    pub(super) order: u32,
    /// When it was issued.
    pub(super) issued: Moment,
    /// It fills a frame that no entry maps: a CPU that sees an entry written later must see the content.
    pub(super) promised: bool,
}

/// See the module.
pub(super) struct StoreBuffer {
    places: [Option<Buffered>; BUFFER],
    /// A bit for each place that is taken.
    taken: u8,
    /// The stores without a place, the oldest first: none, unless all places are taken.
    behind: Vec<Buffered>,
    next_order: u32,
}

const _: () = assert!(BUFFER == 8, "a bit for each place");

impl StoreBuffer {
    pub(super) fn new() -> Self {
        StoreBuffer {
            places: [None; BUFFER],
            taken: 0,
            behind: Vec::new(),
            next_order: 0,
        }
    }

    pub(super) fn clear(&mut self) {
        self.taken = 0;
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

    /// Each buffered store with its place; those without one count on from there.
    #[inline]
    pub(super) fn entries(&self) -> impl Iterator<Item = (usize, &Buffered)> {
        let mut left = self.taken;
        let mut behind = 0;
        std::iter::from_fn(move || {
            if left == 0 {
                let entry = self.behind.get(behind)?;
                behind += 1;
                return Some((BUFFER + behind - 1, entry));
            }
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            Some((place, self.places[place].as_ref()?))
        })
    }

    /// What has a place, with that.
    #[inline]
    pub(super) fn placed(&self) -> impl Iterator<Item = (usize, &Buffered)> {
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

    /// What came first of all that is buffered, with its place: it always has one.
    #[inline]
    pub(super) fn oldest(&self) -> Option<(usize, &Buffered)> {
        if self.taken.is_power_of_two() {
            return self.placed().next();
        }
        self.placed().min_by_key(|(_, entry)| entry.order)
    }

    /// What came before another.
    pub(super) fn before(&self, entry: &Buffered) -> impl Iterator<Item = &Buffered> {
        let end = self.behind.partition_point(|e| e.order < entry.order);
        let placed = self.placed().map(|(_, entry)| entry);
        let order = entry.order;
        placed
            .filter(move |other| other.order < order)
            .chain(&self.behind[..end])
    }

    /// Whether nothing that is buffered is of an epoch before this one, the last.
    #[inline]
    pub(super) fn is_of_epoch(&self, epoch: u32) -> bool {
        // Epochs only rise.
        self.oldest()
            .is_none_or(|(_, oldest)| oldest.epoch == epoch)
    }

    /// Whether anything that is buffered is so.
    #[inline]
    pub(super) fn any(&self, is: impl Fn(&Buffered) -> bool) -> bool {
        self.entries().any(|(_, entry)| is(entry))
    }

    /// Of those that are so, the one that came last.
    #[inline]
    pub(super) fn newest(&self, is: impl Fn(&Buffered) -> bool) -> Option<&Buffered> {
        let those = self.entries().map(|(_, entry)| entry);
        those.filter(|entry| is(entry)).max_by_key(|e| e.order)
    }

    /// What is in a place.
    #[inline]
    pub(super) fn get(&self, place: usize) -> Option<&Buffered> {
        match self.taken & 1 << place {
            0 => None,
            _ => self.places[place].as_ref(),
        }
    }

    /// Puts something in; its order is set here. Where all places are taken, what is in place `instead`
    /// goes behind for it, or it goes there itself, if there is no such place. The oldest of all keeps its place:
    /// everything may have to wait for it.
    pub(super) fn push(&mut self, mut entry: Buffered, instead: usize) {
        self.next_order = match self.taken {
            0 => 0,
            _ => self.next_order + 1,
        };
        entry.order = self.next_order;
        if self.is_full() {
            let oldest = self.entries().map(|(_, entry)| entry.order).min();
            let place = self.places.get_mut(instead).and_then(Option::as_mut);
            let place = place.filter(|place| Some(place.order) != oldest);
            let last = place.map_or(entry, |place| std::mem::replace(place, entry));
            let at = self.behind.partition_point(|e| e.order < last.order);
            self.behind.insert(at, last);
            return;
        }
        self.put(entry);
    }

    fn put(&mut self, entry: Buffered) {
        let place = self.taken.trailing_ones() as usize;
        self.places[place] = Some(entry);
        self.taken |= 1 << place;
    }

    /// Takes out what is in a place.
    pub(super) fn take(&mut self, place: usize) -> Option<Buffered> {
        let entry = self.get(place).copied();
        self.free(place);
        entry
    }

    /// A place is free for what has waited longest for one.
    fn free(&mut self, place: usize) {
        self.taken &= !(1 << place);
        if !self.behind.is_empty() && !self.is_full() {
            let next = self.behind.remove(0);
            self.put(next);
        }
    }

    /// A word goes, and the stores to it.
    pub(super) fn forget(&mut self, word: *const AdversaryWord) {
        self.behind.retain(|entry| !entry.target.is_word(word));
        for place in 0..BUFFER {
            if self.get(place).is_some_and(|e| e.target.is_word(word)) {
                self.free(place);
            }
        }
    }
}
