//! Sets of CPUs: plain ones, and atomic ones that many CPUs change at once. The file is long because its tests compare
//! both with sets of the standard library.
//!
//! Both are bitmaps of up to [`MAX_CPUS`] CPUs. A [`CpuSet`] has one owner. It reads only the words in use: one on a
//! machine of up to 64 CPUs. An [`AtomicCpuSet`] is shared, and its bits are set and cleared one CPU at a time. Two
//! bits of a snapshot may come from different moments. We rely only on this: a bit that was set before the snapshot
//! began, and not cleared before it ended, is in the snapshot.
//!
//! The callers choose the orderings, so the operations are `#[track_caller]`: the check of orderings weakens them at
//! the caller's line.

use crate::stack::CopyList;
use crate::word::Word;
use core::fmt;
use core::sync::atomic::Ordering;

/// The maximum number of CPUs: 1024, or 8192 with the Cargo feature `cpus-8192`.
///
/// A smaller machine pays for the maximum only in memory: no operation reads bits of CPUs that the machine doesn't
/// have.
pub const MAX_CPUS: usize = if cfg!(feature = "cpus-8192") { 8192 } else { 1024 };

const WORDS: usize = MAX_CPUS / 64;

/// Numbers a CPU. CPUs are numbered from 0 without gaps.
///
/// # Examples
///
/// ```
/// use quell::CpuId;
/// let interrupt_ids = [0, 2, 4, 6]; // of the interrupt controller
/// assert_eq!(interrupt_ids[CpuId(3).index()], 6);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CpuId(pub u16);

impl CpuId {
    /// Returns the CPU's number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A CPU's place in a set: one bit of one word. Precomputed for a CPU that enters and leaves sets all the time.
#[derive(Clone, Copy)]
pub(crate) struct CpuBit {
    pub(crate) word: usize,
    pub(crate) bit: u64,
}

impl CpuBit {
    /// Returns the seat of this CPU.
    ///
    /// # Panics
    /// If its number is not below [`MAX_CPUS`].
    #[inline]
    #[track_caller]
    pub(crate) const fn of(cpu: CpuId) -> CpuBit {
        assert!(cpu.index() < MAX_CPUS, "a CPU whose number is too large");
        CpuBit { word: cpu.index() / 64, bit: 1 << (cpu.index() % 64) }
    }

    #[inline]
    pub(crate) const fn cpu(self) -> CpuId {
        CpuId(64 * self.word as u16 + self.bit.trailing_zeros() as u16)
    }
}

/// Holds a set of CPUs as a bitmap, for up to [`MAX_CPUS`].
///
/// # Examples
///
/// ```
/// use quell::{CpuId, CpuSet};
/// let mut set = CpuSet::first(4);
/// set.remove(CpuId(2));
/// assert!(set.iter().eq([CpuId(0), CpuId(1), CpuId(3)]));
/// ```
#[derive(Clone, Copy)]
pub struct CpuSet {
    /// The words that may hold members. Later words have none.
    words: CopyList<u64, WORDS>,
}

impl CpuSet {
    /// The empty set.
    pub const EMPTY: CpuSet = CpuSet::none();

    /// Makes the empty set in place. A copy of the constant would fill the unused room with zeros.
    #[inline]
    pub(crate) const fn none() -> CpuSet {
        CpuSet { words: CopyList::new() }
    }

    /// Makes the set of the CPUs `0..count`.
    ///
    /// # Panics
    /// If `count` exceeds [`MAX_CPUS`].
    pub fn first(count: usize) -> Self {
        assert!(count <= MAX_CPUS, "{count} CPUs, but at most {MAX_CPUS} are supported");
        let mut set = Self::none();
        for begin in (0..count).step_by(64) {
            let below = (count - begin).min(64);
            set.words.push(u64::MAX >> (64 - below));
        }
        set
    }

    /// Returns the members as bits: CPU `n` is bit `n % 64` of word `n / 64`.
    ///
    /// The slice may be shorter than [`MAX_CPUS`] bits. CPUs beyond its end aren't members.
    #[inline]
    pub fn words(&self) -> &[u64] {
        self.words.as_slice()
    }

    /// Returns whether the set has no members.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|&word| word == 0)
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(&self) -> usize {
        let counts = self.words().iter().map(|word| word.count_ones());
        counts.map(|count| count as usize).sum()
    }

    /// Returns whether `cpu` is a member.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        let word = self.words().get(cpu.index() / 64);
        word.is_some_and(|word| word & (1 << (cpu.index() % 64)) != 0)
    }

    /// Adds `cpu` to the set.
    ///
    /// # Panics
    /// If its number is not below [`MAX_CPUS`].
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        self.insert_new(cpu);
    }

    /// Adds `cpu`. Returns whether it was not a member before.
    #[inline]
    pub(crate) fn insert_new(&mut self, cpu: CpuId) -> bool {
        let (index, bit) = (cpu.index() / 64, 1 << (cpu.index() % 64));
        if let Some(word) = self.words.as_mut_slice().get_mut(index) {
            let before = *word;
            *word |= bit;
            return before & bit == 0;
        }
        while self.words().len() < index {
            self.words.push(0);
        }
        self.words.push(bit);
        true
    }

    /// Removes `cpu` from the set.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        if let Some(word) = self.words.as_mut_slice().get_mut(cpu.index() / 64) {
            *word &= !(1 << (cpu.index() % 64));
        }
    }

    /// Becomes equal to `other`.
    #[inline]
    pub(crate) fn become_same(&mut self, other: &CpuSet) {
        let mut words = self.words.refill();
        other.words().iter().for_each(|&word| words.push(word));
    }

    /// Adds the members of `other`.
    #[inline]
    pub fn union(&mut self, other: &CpuSet) {
        while self.words().len() < other.words().len() {
            self.words.push(0);
        }
        for (mine, theirs) in self.words.as_mut_slice().iter_mut().zip(other.words()) {
            *mine |= theirs;
        }
    }

    /// Keeps the members for which `keep` returns `true`. Calls it in ascending order.
    #[inline(always)]
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(CpuId) -> bool) {
        for (index, word) in self.words.as_mut_slice().iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let lowest = left & left.wrapping_neg();
                let bit = left.trailing_zeros() as u16;
                left ^= lowest;
                if !keep(CpuId(64 * index as u16 + bit)) {
                    *word ^= lowest;
                }
            }
        }
    }

    /// Removes members in ascending order while `gone` returns `true`. Returns whether none is left.
    #[inline(always)]
    pub(crate) fn remove_while(&mut self, mut gone: impl FnMut(CpuId) -> bool) -> bool {
        for (index, word) in self.words.as_mut_slice().iter_mut().enumerate() {
            while *word != 0 {
                if !gone(CpuId(64 * index as u16 + word.trailing_zeros() as u16)) {
                    return false;
                }
                *word &= *word - 1;
            }
        }
        true
    }

    /// Iterates over the members in ascending order.
    #[inline]
    pub fn iter(&self) -> Members<'_> {
        let (first, rest) = self.words().split_first().unwrap_or((&0, &[]));
        Members { left: *first, base: 0, rest }
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for CpuSet {}

impl Default for CpuSet {
    fn default() -> Self {
        CpuSet::none()
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|cpu| cpu.0)).finish()
    }
}

/// Iterates over the members of a [`CpuSet`] in ascending order. Made by [`CpuSet::iter`].
#[derive(Clone, Debug)]
pub struct Members<'s> {
    /// The members left in the word that begins with CPU `base`.
    left: u64,
    base: u16,
    rest: &'s [u64],
}

impl Iterator for Members<'_> {
    type Item = CpuId;
    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while self.left == 0 {
            let (next, rest) = self.rest.split_first()?;
            (self.left, self.rest) = (*next, rest);
            self.base += 64;
        }
        let bit = self.left.trailing_zeros();
        self.left &= self.left - 1;
        Some(CpuId(self.base + bit as u16))
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = CpuSet::none();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

/// A set of CPUs that many CPUs change at once: two cache lines of bits for 1024 CPUs.
#[repr(align(64))]
pub(crate) struct AtomicCpuSet<W> {
    bits: [W; WORDS],
}

impl<W: Word> AtomicCpuSet<W> {
    /// Makes the empty set.
    pub(crate) fn new() -> Self {
        AtomicCpuSet { bits: core::array::from_fn(|_| W::new(0)) }
    }

    /// Adds `cpu` to the set.
    ///
    /// # Panics
    /// If its number is not below [`MAX_CPUS`].
    #[inline]
    #[track_caller]
    pub(crate) fn insert(&self, cpu: CpuId, order: Ordering) {
        self.seat(CpuBit::of(cpu), order);
    }

    /// Adds the CPU that has this seat.
    #[inline]
    #[track_caller]
    pub(crate) fn seat(&self, seat: CpuBit, order: Ordering) {
        self.bits[seat.word % WORDS].fetch_or(seat.bit, order);
    }

    /// Removes the CPU that has this seat.
    #[inline]
    #[track_caller]
    pub(crate) fn unseat(&self, seat: CpuBit, order: Ordering) {
        self.bits[seat.word % WORDS].fetch_and(!seat.bit, order);
    }

    /// Returns whether no other CPU of `0..cpus` than the one at `seat` is a member.
    ///
    /// The word of `seat` is among those of `0..cpus`. Like a [snapshot](AtomicCpuSet::snapshot), it reads whole words,
    /// on most machines a single one.
    #[inline]
    #[track_caller]
    pub(crate) fn is_within_seat(&self, seat: CpuBit, cpus: usize, order: Ordering) -> bool {
        if cpus <= 64 {
            return self.bits[0].load(order) & !seat.bit == 0;
        }
        for (index, word) in self.bits[..cpus.div_ceil(64)].iter().enumerate() {
            let mine = if index == seat.word { seat.bit } else { 0 };
            if word.load(order) & !mine != 0 {
                return false;
            }
        }
        true
    }

    /// Reads the members among the CPUs `0..cpus`, word by word. So it's not one moment in time.
    ///
    /// It reads whole words of 64 CPUs, so members up to the next multiple of 64 are included. A set must therefore not
    /// contain a CPU that the machine lacks.
    ///
    /// # Panics
    /// If `cpus` exceeds [`MAX_CPUS`].
    #[inline]
    #[track_caller]
    pub(crate) fn snapshot(&self, cpus: usize, order: Ordering) -> CpuSet {
        let mut set = CpuSet::none();
        self.read_into(&mut set, cpus, order);
        set
    }

    /// Writes a [snapshot](AtomicCpuSet::snapshot) into `set`, in place to avoid a copy.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn read_into(&self, set: &mut CpuSet, cpus: usize, order: Ordering) {
        let mut words = set.words.refill();
        for shared in &self.bits[..cpus.div_ceil(64)] {
            words.push(shared.load(order));
        }
    }

    /// Replaces the members among `0..cpus`, rounded up to a multiple of 64.
    ///
    /// It writes word by word, so no other CPU may change the set meanwhile.
    #[inline]
    #[track_caller]
    pub(crate) fn assign(&self, cpus: usize, members: &CpuSet, order: Ordering) {
        for (index, shared) in self.bits.iter().enumerate().take(cpus.div_ceil(64)) {
            let word = members.words().get(index).copied();
            shared.store(word.unwrap_or_default(), order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn first_holds_exactly_the_first() {
        for count in [0, 1, 63, 64, 65, 128, 1000, MAX_CPUS] {
            let set = CpuSet::first(count);
            assert_eq!(set.len(), count);
            assert!(set.iter().map(CpuId::index).eq(0..count));
        }
    }

    /// Yields sets of CPUs in three words, with CPUs at the words' edges more often.
    fn members() -> impl Strategy<Value = BTreeSet<u16>> {
        let cpu = prop_oneof![
            0u16..192,
            prop_oneof![Just(0u16), Just(63), Just(64), Just(127), Just(128)]
        ];
        proptest::collection::btree_set(cpu, 0..6)
    }

    fn set(members: &BTreeSet<u16>) -> CpuSet {
        members.iter().copied().map(CpuId).collect()
    }

    fn shared(members: &BTreeSet<u16>) -> AtomicCpuSet<AtomicU64> {
        let shared = AtomicCpuSet::new();
        members.iter().for_each(|&cpu| shared.insert(CpuId(cpu), Ordering::SeqCst));
        shared
    }

    proptest! {
        #[test]
        fn sets_do_what_sets_do(one in members(), other in members(), cpu in 0u16..200) {
            let (mut mine, theirs) = (set(&one), set(&other));
            prop_assert_eq!(mine == theirs, one == other);
            let mut copy = set(&[191].into());
            copy.become_same(&mine);
            prop_assert_eq!(copy, mine);
            prop_assert_eq!(mine.is_empty(), one.is_empty());
            prop_assert_eq!(mine.len(), one.len());
            prop_assert_eq!(mine.contains(CpuId(cpu)), one.contains(&cpu));
            mine.union(&theirs);
            let all: BTreeSet<u16> = one.union(&other).copied().collect();
            prop_assert!(mine.iter().map(|cpu| cpu.0).eq(all.iter().copied()));
            mine.retain(|member| member.0 != cpu);
            prop_assert!(!mine.contains(CpuId(cpu)));
            mine.insert(CpuId(cpu));
            mine.remove(CpuId(cpu));
            let rest: BTreeSet<u16> = all.iter().copied().filter(|&other| other != cpu).collect();
            prop_assert_eq!(mine, set(&rest));
            // A set that has had more words equals one that hasn't.
            mine.insert(CpuId(cpu));
            prop_assert!(mine.contains(CpuId(cpu)));
        }

        #[test]
        fn shared_sets_do_what_sets_do(one in members(), other in members(), cpu in 0u16..192, cpus in 0usize..200) {
            let mine = shared(&one);
            prop_assert_eq!(mine.snapshot(MAX_CPUS, Ordering::SeqCst), set(&one));
            let alone = one.iter().all(|&other| other == cpu);
            prop_assert_eq!(mine.is_within_seat(CpuBit::of(CpuId(cpu)), 192, Ordering::SeqCst), alone);
            let cpus = cpus.max(1);
            // A snapshot reads whole words, so it includes members beyond the last CPU.
            let near = |&&other: &&u16| usize::from(other) < cpus.next_multiple_of(64);
            let seen: BTreeSet<u16> = one.iter().filter(near).copied().collect();
            prop_assert_eq!(mine.snapshot(cpus, Ordering::SeqCst), set(&seen));
            if usize::from(cpu) < cpus.next_multiple_of(64) {
                let alone = seen.iter().all(|&other| other == cpu);
                prop_assert_eq!(mine.is_within_seat(CpuBit::of(CpuId(cpu)), cpus, Ordering::SeqCst), alone);
            }
            mine.unseat(CpuBit::of(CpuId(cpu)), Ordering::SeqCst);
            prop_assert!(!mine.snapshot(MAX_CPUS, Ordering::SeqCst).contains(CpuId(cpu)));
            mine.assign(192, &set(&other), Ordering::SeqCst);
            prop_assert_eq!(mine.snapshot(192, Ordering::SeqCst), set(&other));
            // It also writes whole words.
            mine.assign(cpus, &CpuSet::EMPTY, Ordering::SeqCst);
            let left: BTreeSet<u16> = other.iter().filter(|cpu| !near(cpu)).copied().collect();
            prop_assert_eq!(mine.snapshot(192, Ordering::SeqCst), set(&left));
        }
    }

    #[test]
    fn no_set_is_longer_than_it_must_be() {
        let none = shared(&BTreeSet::new());
        for (cpus, words) in [(0, 0), (1, 1), (64, 1), (65, 2)] {
            assert_eq!(none.snapshot(cpus, Ordering::SeqCst).words().len(), words);
        }
        assert_eq!(set(&[64].into()).words().len(), 2);
        let mut one = set(&[0].into());
        one.union(&set(&[64].into()));
        assert_eq!(one.words().len(), 2);
    }
}
