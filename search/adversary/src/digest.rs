//! Digests of states: hashes of bytes, sums over changes, and moments replaced by their ranks.

use crate::action::MAX_CPUS;
use crate::oracle::Moment;
use crate::word::AdversaryWord;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes to hash.
#[derive(Debug, Default)]
pub(crate) struct Digest(Vec<u8>);

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        xxh3_128(&self.0) as u64
    }
}

impl Digest {
    /// Returns the digest of the bytes after the first `start`, and removes them.
    pub(crate) fn take(&mut self, start: usize) -> u128 {
        let number = xxh3_128(&self.0[start..]);
        self.0.truncate(start);
        number
    }

    /// Adds items, whose order doesn't matter.
    pub(crate) fn add_all<T: Hash>(&mut self, things: impl Iterator<Item = T>) {
        let start = self.0.len();
        let mut sum = 0u128;
        for thing in things {
            thing.hash(self);
            sum = sum.wrapping_add(self.take(start));
        }
        sum.hash(self);
    }
}

/// A number that identifies all words and contents. Each change since the run was prepared subtracts the digest of the
/// old value and adds that of the new one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums(pub(crate) u128);

impl Sums {
    fn change(&mut self, place: (usize, usize), old: u64, new: u64) {
        let part = |value: u64| {
            let mut bytes = [0; 24];
            bytes[..8].copy_from_slice(&place.0.to_ne_bytes());
            bytes[8..16].copy_from_slice(&place.1.to_ne_bytes());
            bytes[16..].copy_from_slice(&value.to_ne_bytes());
            xxh3_128(&bytes)
        };
        self.0 = self.0.wrapping_sub(part(old)).wrapping_add(part(new));
    }

    pub(crate) fn word(&mut self, word: &AdversaryWord, old: u64, new: u64) {
        self.change((std::ptr::from_ref(word) as usize, usize::MAX), old, new);
    }

    pub(crate) fn content(&mut self, frame: u32, word: usize, old: u64, new: u64) {
        self.change((frame as usize, word), old, new);
    }
}

/// The moments with which others are compared.
pub(crate) struct Moments {
    pub(crate) sorted: Vec<Moment>,
    /// When each invalidation that has not taken effect was issued, CPU by CPU.
    pub(crate) sent: Vec<Moment>,
}

impl Moments {
    /// Returns how many of the moments aren't later than this one.
    pub(crate) fn rank(&self, moment: Moment) -> usize {
        self.sorted.partition_point(|&other| other <= moment)
    }

    /// Returns whether an entry that can be walked until `until` still can, and which pending invalidations it
    /// outlives, as bits.
    pub(crate) fn outlives(&self, until: Moment) -> (bool, u64) {
        let later = self.sent.iter().map(|&sent| u64::from(until > sent));
        let bits = later.fold(0, |bits, bit| bits << 1 | bit);
        (until == Moment::MAX, bits)
    }
}

/// The digests of the CPUs' own code and stacks.
pub(crate) type Locals = [(u128, u64); MAX_CPUS];
