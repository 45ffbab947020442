//! Sets of CPUs: plain ones, and ones that many CPUs change at once.
//!
//! Both hold up to [`MAX_CPUS`] CPUs as a bitmap. A [`CpuSet`] belongs to its holder; an
//! [`AtomicCpuSet`] is shared, its bits are set and cleared one CPU at a time, and a snapshot of it
//! is not one moment in time: two bits may come from different moments. Every user of a snapshot
//! in this crate needs only this: a bit that was set before the snapshot began, and not cleared
//! before it ended, is in it.
//!
//! The callers choose the orderings, so the operations pass on their caller's place: the check of orderings
//! (`docs/orderings.md`) weakens them there.

use crate::word::Word;
use core::sync::atomic::Ordering;

/// The largest number of CPUs that the engine handles.
pub const MAX_CPUS: usize = 1024;

const WORDS: usize = MAX_CPUS / 64;

/// A CPU, numbered from 0 without gaps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CpuId(pub u16);

impl CpuId {
    /// The CPU's number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A set of CPUs.
///
/// Most machines have few CPUs, and most sets fewer: whoever walks through one looks only at words that are not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuSet {
    bits: [u64; WORDS],
    /// Bit `n` says whether word `n` is not zero.
    filled: u64,
}

const _: () = assert!(WORDS <= 64);

impl CpuSet {
    /// The set without members.
    pub const EMPTY: CpuSet = CpuSet {
        bits: [0; WORDS],
        filled: 0,
    };

    /// The CPUs `0..count`.
    ///
    /// # Panics
    /// If `count` exceeds [`MAX_CPUS`].
    pub fn first(count: usize) -> Self {
        assert!(
            count <= MAX_CPUS,
            "{count} CPUs, but at most {MAX_CPUS} are supported"
        );
        let mut set = Self::EMPTY;
        for index in 0..count.div_ceil(64) {
            let below = (count - index * 64).min(64);
            set.put(index, u64::MAX >> (64 - below));
        }
        set
    }

    /// Gives a word its value.
    #[inline]
    fn put(&mut self, index: usize, word: u64) {
        self.bits[index] = word;
        self.filled &= !(1 << index);
        self.filled |= u64::from(word != 0) << index;
    }

    /// The words that are not zero, with their numbers.
    #[inline]
    fn words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        ones(self.filled).map(|index| (index, self.bits[index % WORDS]))
    }

    /// Whether the set has no members.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// How many members the set has.
    #[inline]
    pub fn len(&self) -> usize {
        self.words()
            .map(|(_, word)| word.count_ones() as usize)
            .sum()
    }

    /// Whether `cpu` is a member.
    #[inline]
    pub fn contains(&self, cpu: CpuId) -> bool {
        self.bits[cpu.index() / 64] & (1 << (cpu.index() % 64)) != 0
    }

    /// Makes `cpu` a member.
    #[inline]
    pub fn insert(&mut self, cpu: CpuId) {
        self.bits[cpu.index() / 64] |= 1 << (cpu.index() % 64);
        self.filled |= 1 << (cpu.index() / 64);
    }

    /// Makes `cpu` no member.
    #[inline]
    pub fn remove(&mut self, cpu: CpuId) {
        let index = cpu.index() / 64;
        self.put(index, self.bits[index] & !(1 << (cpu.index() % 64)));
    }

    /// Adds the members of `other`.
    #[inline]
    pub fn union(&mut self, other: &CpuSet) {
        for (index, word) in other.words() {
            self.put(index, self.bits[index] | word);
        }
    }

    /// The members in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = CpuId> + '_ {
        self.words().flat_map(|(index, word)| {
            ones(word).map(move |bit| CpuId((index * 64) as u16 + bit as u16))
        })
    }
}

/// The numbers of the bits that are set, in ascending order.
#[inline]
fn ones(word: u64) -> impl Iterator<Item = usize> {
    let mut left = word;
    core::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let bit = left.trailing_zeros();
        left &= left - 1;
        Some(bit as usize)
    })
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = CpuSet::EMPTY;
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

/// A set of CPUs that many CPUs change at once. Two cache lines of bits.
#[repr(align(64))]
pub struct AtomicCpuSet<W> {
    bits: [W; WORDS],
}

impl<W: Word> Default for AtomicCpuSet<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Word> AtomicCpuSet<W> {
    /// The set without members.
    pub fn new() -> Self {
        AtomicCpuSet {
            bits: core::array::from_fn(|_| W::new(0)),
        }
    }

    /// Makes `cpu` a member.
    #[inline]
    #[track_caller]
    pub fn insert(&self, cpu: CpuId, order: Ordering) {
        self.bits[cpu.index() / 64].fetch_or(1 << (cpu.index() % 64), order);
    }

    /// Makes `cpu` no member.
    #[inline]
    #[track_caller]
    pub fn remove(&self, cpu: CpuId, order: Ordering) {
        self.bits[cpu.index() / 64].fetch_and(!(1 << (cpu.index() % 64)), order);
    }

    /// Whether `cpu` is a member right now.
    #[inline]
    #[track_caller]
    pub fn contains(&self, cpu: CpuId, order: Ordering) -> bool {
        self.bits[cpu.index() / 64].load(order) & (1 << (cpu.index() % 64)) != 0
    }

    /// Whether no CPU of `0..cpus` but `cpu` is a member; word by word, as a snapshot.
    #[inline]
    #[track_caller]
    pub fn is_within(&self, cpu: CpuId, cpus: usize, order: Ordering) -> bool {
        for (index, word) in self.bits[..cpus.div_ceil(64)].iter().enumerate() {
            let bits = word.load(order);
            if bits != 0 && (index != cpu.index() / 64 || bits != 1 << (cpu.index() % 64)) {
                return false;
            }
        }
        true
    }

    /// The members among the CPUs `0..cpus`, word by word: not one moment in time.
    #[inline]
    #[track_caller]
    pub fn snapshot(&self, cpus: usize, order: Ordering) -> CpuSet {
        let mut set = CpuSet::EMPTY;
        let words = self.bits.iter().enumerate().take(cpus.div_ceil(64));
        for (index, shared) in words {
            set.put(index, shared.load(order));
        }
        set
    }

    /// Replaces the members; word by word, so only for a set that no other CPU changes meanwhile.
    #[inline]
    #[track_caller]
    pub fn assign(&self, cpus: usize, members: &CpuSet, order: Ordering) {
        for (word, shared) in members.bits.iter().zip(&self.bits).take(cpus.div_ceil(64)) {
            shared.store(*word, order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[test]
    fn first_holds_exactly_the_first() {
        for count in [0, 1, 63, 64, 65, 128, 1000, MAX_CPUS] {
            let set = CpuSet::first(count);
            assert_eq!(set.len(), count);
            assert!(set.iter().map(CpuId::index).eq(0..count));
        }
    }

    #[test]
    fn atomic_set_follows_its_members() {
        let shared = AtomicCpuSet::<AtomicU64>::new();
        for cpu in [0, 63, 64, 1023] {
            shared.insert(CpuId(cpu), Ordering::SeqCst);
            assert!(shared.contains(CpuId(cpu), Ordering::SeqCst));
            assert!(!shared.is_within(CpuId(cpu), MAX_CPUS, Ordering::SeqCst) || cpu == 0);
        }
        shared.remove(CpuId(63), Ordering::SeqCst);
        let seen = shared.snapshot(MAX_CPUS, Ordering::SeqCst);
        assert!(seen.iter().eq([CpuId(0), CpuId(64), CpuId(1023)]));
    }
}
