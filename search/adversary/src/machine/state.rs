//! Computes a number for the machine's state.
//!
//! Two moments with the same number have the same future: the same things can happen after both, and break the contract
//! or don't. So the number includes everything on which the future depends. That's every word and every content, the
//! store buffers, the translation hardware and the judge. It's also the stacks and registers of the CPUs
//! ([`Core::local`]).
//!
//! Two details are left out, because they would distinguish states that have the same future:
//!
//! * The exact moment of an event. Only the order of events matters, and only for pairs that the judge compares. For
//!   example, it compares whether an entry was written before its frame's content was captured. So a moment is replaced
//!   by its rank among those with which it will be compared.
//! * A call that has returned. Only older translations matter that may still be cached and must not be used. Newer
//!   translations are younger than the call.
//!
//! Numbers have 128 bits. Two different states are less likely to share one than the host's memory is to err.

use super::buffer::{Fill, Target};
use super::{Core, Cpu};
use crate::digest::{Digest, Locals, Moments};
use crate::oracle::{History, Moment};
use crate::schedule::Strategy;
use quell_vm::sim::heap::Heap;
use std::hash::Hash;
use xxhash_rust::xxh3::xxh3_128;

impl Core {
    /// Returns a digest of the machine's state. Call [`Core::local`] for the CPUs' stacks first.
    pub(crate) fn state(&self) -> u128 {
        let mut digest = self.digest.borrow_mut();
        let digest = &mut *digest;
        let moments = self.moments();
        (self.sums.0, self.locals, self.heap, self.nmis, self.preemptions, self.spurious)
            .hash(digest);
        self.second_looks.hash(digest);
        if let Some(text) = self.text {
            (text.page, text.done).hash(digest);
            (0..self.count).for_each(|cpu| self.text_is_old(cpu).hash(digest));
        }
        for cpu in &self.cpus[..self.count] {
            cpu.digest(&moments, digest);
        }
        if self.kind.isolated {
            (self.halves[..self.count].iter()).for_each(|halves| halves.state().hash(digest));
        }
        let history = |(frame, history): (usize, &History)| {
            let History { free, dead_table, .. } = *history;
            let allocated = moments.rank(history.allocated);
            (frame, free, dead_table, allocated, moments.rank(history.captured))
        };
        let eventful = |(_, history): &(usize, &History)| {
            history.free || history.dead_table || history.allocated.max(history.captured) > 0
        };
        let frames = self.oracle.frames().enumerate().filter(eventful);
        digest.add_all(frames.map(history));
        digest.add_all(self.oracle.expected());
        self.mmu.digest(&moments, &self.oracle, digest);
        self.past.digest(self.count, digest);
        digest.take(0)
    }

    fn moments(&self) -> Moments {
        let mut sorted: Vec<Moment> = self
            .oracle
            .frames()
            .flat_map(|history| [history.allocated, history.captured])
            .chain(self.cpus[..self.count].iter().map(|cpu| cpu.call_began))
            .chain(
                self.cpus[..self.count]
                    .iter()
                    .flat_map(|cpu| cpu.fills().map(|fill| fill.0.issued)),
            )
            .filter(|&moment| moment != 0)
            .collect();
        sorted.sort_unstable();
        sorted.dedup();
        let sent = self.cpus[..self.count].iter().flat_map(|cpu| {
            let own = cpu.buffer.others().filter_map(|entry| match entry.target {
                Target::Invalidation { sent, .. } => Some(sent),
                _ => None,
            });
            own.chain(cpu.broadcasts.iter().map(|sent| sent.1))
        });
        let sent = sent.collect();
        Moments { sorted, sent }
    }

    /// Sets a CPU's own state: its stack and registers, and the number that the kernel keeps for it.
    pub(crate) fn local(&mut self, cpu: usize, stack: &[u8], kept: u64) {
        self.locals[cpu] = (xxh3_128(stack), kept);
    }

    /// Sets the digest of the memory that programs have allocated.
    pub(crate) fn digest_heap(&mut self, heap: Option<&Heap>) {
        if let Some(heap) = heap {
            let digest = self.digest.get_mut();
            heap.digest(digest);
            self.heap = digest.take(0);
        }
    }

    /// Forgets the CPUs' stacks and the heap at the end of a run.
    pub(crate) fn forget_locals(&mut self) {
        self.locals = Locals::default();
        self.heap = 0;
    }

    /// Returns whether the search calls [`Core::state`] next.
    pub(crate) fn wants_state(&self) -> bool {
        matches!(&self.strategy, Strategy::Exhaustive(search) if search.wants_state())
    }
}

impl Cpu {
    fn digest(&self, moments: &Moments, digest: &mut Digest) {
        (self.pending, self.interrupts_on, self.interrupt).hash(digest);
        self.online.hash(digest);
        (self.in_nmi, self.woken, moments.rank(self.call_began)).hash(digest);
        let mut buffered: Vec<_> = self.buffer.entries().collect();
        buffered.sort_unstable_by_key(|(_, entry)| entry.order);
        let mut epoch = 0;
        for (place, entry) in buffered {
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
                Target::Fill(fill) => {
                    let Fill { first, frames, words, zeroes } = fill;
                    let issued = moments.rank(entry.issued);
                    (3u8, first, frames, words, zeroes, entry.promised, issued).hash(digest);
                }
            }
        }
        digest.add_all(self.watch.state());
        self.broadcasts.len().hash(digest);
        for (what, _) in &self.broadcasts {
            what.hash(digest);
        }
    }
}
