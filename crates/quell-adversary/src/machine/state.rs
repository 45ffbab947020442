//! What the machine is at a moment, as a number.
//!
//! Two moments with the same number have the same future: whatever can happen after one, and
//! whether it breaks the contract, is the same after the other. Into the number goes all that the
//! future depends on: every word and every content, the store buffers, the translation hardware,
//! the judge, and the stacks and registers of the CPUs ([`Core::local`]).
//!
//! Two things are left out, because they make states differ that have the same future. *Which*
//! moment something happened at does not matter, only what came before what, and that only for
//! pairs that the judge compares: so a moment goes in as its place among those that it will be compared with.
//! And of a call that has returned nothing matters but which translations of before are still about that
//! must not be used any more: new ones are younger than the call.
//!
//! Numbers have 128 bits. That two states share one by chance is less likely than that the host's memory
//! errs.

use super::{Core, Cpu, Target};
use crate::mmu::Leaf;
use crate::oracle::{History, Moment};
use crate::schedule::{MAX_CPUS, Strategy};
use crate::word::AdversaryWord;
use quell_sim::heap::Heap;
use std::hash::{Hash, Hasher};
use xxhash_rust::xxh3::xxh3_128;

/// Bytes that become a number.
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
    /// The number of what was added after the first `start` bytes, which go.
    fn take(&mut self, start: usize) -> u128 {
        let number = xxh3_128(&self.0[start..]);
        self.0.truncate(start);
        number
    }

    /// Adds things whose order does not matter.
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

/// Sums over everything that has changed since the run was made ready, from the numbers of what it was and of what it
/// is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums(u128);

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

    pub(super) fn word(&mut self, word: &AdversaryWord, old: u64, new: u64) {
        self.change((std::ptr::from_ref(word) as usize, usize::MAX), old, new);
    }

    pub(super) fn content(&mut self, frame: u32, word: usize, old: u64, new: u64) {
        self.change((frame as usize, word), old, new);
    }
}

/// The moments that others are compared with.
pub(crate) struct Moments {
    sorted: Vec<Moment>,
    /// When invalidations were issued that have not taken effect, CPU by CPU.
    sent: Vec<Moment>,
}

impl Moments {
    /// How many of the moments came no later.
    pub(crate) fn rank(&self, moment: Moment) -> usize {
        self.sorted.partition_point(|&other| other <= moment)
    }

    /// What an entry that can be walked until then outlives.
    pub(crate) fn outlives(&self, until: Moment) -> (bool, u64) {
        let later = self.sent.iter().map(|&sent| u64::from(until > sent));
        let bits = later.fold(0, |bits, bit| bits << 1 | bit);
        (until == Moment::MAX, bits)
    }
}

impl Core {
    /// The machine's state. The stacks of the CPUs are those told with [`Core::local`].
    pub(crate) fn state(&self) -> u128 {
        let mut digest = self.digest.borrow_mut();
        let digest = &mut *digest;
        let moments = self.moments();
        (
            self.sums.0,
            self.locals,
            self.books,
            self.nmis,
            self.preemptions,
            self.spurious,
        )
            .hash(digest);
        self.second_looks.hash(digest);
        for cpu in &self.cpus[..self.count] {
            cpu.digest(&moments, digest);
        }
        let history = |(frame, history): (usize, &History)| {
            let History {
                free, dead_table, ..
            } = *history;
            let allocated = moments.rank(history.allocated);
            (
                frame,
                free,
                dead_table,
                allocated,
                moments.rank(history.captured),
            )
        };
        let eventful = |(_, history): &(usize, &History)| {
            history.free || history.dead_table || history.allocated.max(history.captured) > 0
        };
        let frames = self.oracle.frames().enumerate().filter(eventful);
        digest.add_all(frames.map(history));
        digest.add_all(self.oracle.promises());
        let forbidden = |leaf: &Leaf| {
            self.oracle
                .forbids(leaf.root(), leaf.pages_of(), leaf.times())
        };
        self.mmu.digest(&moments, forbidden, digest);
        digest.take(0)
    }

    fn moments(&self) -> Moments {
        let mut sorted: Vec<Moment> = self
            .oracle
            .frames()
            .flat_map(|history| [history.allocated, history.captured])
            .chain(self.cpus[..self.count].iter().map(|cpu| cpu.call_began))
            .filter(|&moment| moment != 0)
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let sent = self.cpus[..self.count].iter().flat_map(|cpu| {
            let buffered = cpu.buffer.iter().flatten();
            let own = buffered.filter_map(|entry| match entry.target {
                Target::Invalidation { sent, .. } => Some(sent),
                _ => None,
            });
            own.chain(cpu.broadcasts.iter().map(|sent| sent.1))
        });
        let sent = sent.collect();
        Moments { sorted, sent }
    }

    /// What a CPU's own code is about: its stack and its registers, and what else there is.
    pub(crate) fn local(&mut self, cpu: usize, stack: &[u8], kept: u64) {
        self.locals[cpu] = (xxh3_128(stack), kept);
    }

    /// What programs have allocated.
    pub(crate) fn books(&mut self, heap: Option<&Heap>) {
        if let Some(heap) = heap {
            let digest = self.digest.get_mut();
            heap.digest(digest);
            self.books = digest.take(0);
        }
    }

    /// The CPUs' code is gone, and with it what it left on the stacks.
    pub(crate) fn forget_locals(&mut self) {
        self.locals = Locals::default();
        self.books = 0;
    }

    /// Whether [`Core::state`] will be asked for next.
    pub(crate) fn wants_state(&self) -> bool {
        matches!(&self.strategy, Strategy::Exhaustive(search) if search.wants_state())
    }
}

impl Cpu {
    fn digest(&self, moments: &Moments, digest: &mut Digest) {
        (self.pending, self.interrupts_on, self.interrupt).hash(digest);
        (self.in_nmi, self.woken, moments.rank(self.call_began)).hash(digest);
        let mut buffered: Vec<_> = self.buffer.iter().enumerate().collect();
        buffered.sort_unstable_by_key(|(_, entry)| entry.map(|entry| entry.order));
        let mut epoch = 0;
        for (place, entry) in buffered {
            let Some(entry) = entry else { continue };
            let new_epoch = std::mem::replace(&mut epoch, entry.epoch) != entry.epoch;
            let flags = (entry.release, entry.sequential, entry.epoch == self.epoch);
            (place, entry.value, flags, new_epoch).hash(digest);
            match entry.target {
                Target::Word(word) => (0u8, word).hash(digest),
                Target::Content { used, word } => {
                    let written = moments.rank(used.written);
                    (1u8, used.root, used.page, used.frame, written, word).hash(digest);
                }
                Target::Invalidation { what, .. } => (2u8, what).hash(digest),
            }
        }
        digest.add_all(self.watch.iter().map(|known| {
            let changed = known.changed().then_some(known.seen);
            (known.word, known.turns, changed)
        }));
        self.broadcasts.len().hash(digest);
        for (what, _) in &self.broadcasts {
            what.hash(digest);
        }
    }
}

/// What the CPUs' own code is about.
pub(super) type Locals = [(u128, u64); MAX_CPUS];
