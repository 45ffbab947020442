//! Flushes of a whole space that several tasks share.
//!
//! If `n` threads unmap memory at the same time, they interrupt every CPU `n` times, although one full flush that
//! begins after all of them have written the tables would be enough.
//!
//! So each task takes a *number* after it has written the tables. The task with the lowest number that isn't served is
//! the *leader*: it reads the latest number, flushes the space, and marks all numbers up to that one as served. The
//! others wait until theirs is served, or until they lead. So `n` concurrent tasks interrupt the CPUs once or twice,
//! and a task waits for at most two flushes: one that began before it took its number, and the next one.
//!
//! A flush doesn't serve numbers that were taken after it began: a CPU may have flushed already, and walked the tables
//! again, before that task wrote to them.
//!
//! A task masks interrupts from before it takes its number until its number is served. So no code can preempt it and
//! then wait for it. It answers other CPUs' requests while it waits. So a leader waits only for CPUs that answer, and
//! the others wait only for a leader.
//!
//! Tasks that call [`Cpu::flush_coalesced`](crate::Cpu::flush_coalesced) share flushes. On machines with many CPUs
//! ([`Hardware::shares_lines_from`](crate::Hardware::shares_lines_from)), so do batches, if several batches of a space
//! are pending. Flushes that freed tables have their own numbers, because they end later.

use crate::cpu_set::CpuId;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The shared flushes of one space and scope.
///
/// There are 2^48 numbers, and we never reuse one: at a million per second they last for nine years.
pub(crate) struct CoalescedFlushes<'s, W> {
    /// The latest number that a task has taken, above the CPU of the latest leader.
    pub(crate) taken: &'s W,
    /// The latest number that is served.
    pub(crate) served: &'s W,
}

/// The number of bits that encode a CPU.
const CPU_BITS: u32 = u16::BITS;

impl<W: Word> CoalescedFlushes<'_, W> {
    /// Takes a number, for a task that has written the tables.
    pub(crate) fn take_number(&self) -> u64 {
        // Release pairs with `lead`: the flush that serves this number begins after this CPU has written the tables
        // and entered the space's set.
        // A weaker ordering fails the loom race "two tasks share a flush".
        (self.taken.fetch_add(1 << CPU_BITS, Release) >> CPU_BITS) + 1
    }

    /// Returns the latest number that a task has taken, and makes `me` the leader.
    ///
    /// All numbers before the caller's are served, so no other CPU leads.
    pub(crate) fn lead(&self, me: CpuId) -> u64 {
        // Relaxed: only leaders write the CPU, and this one has seen the last one's end.
        let last = self.leader();
        let step = u64::from(me.0).wrapping_sub(u64::from(last.0));
        // Acquire pairs with `take_number`: the flush that follows comes after all table writes of the tasks with these
        // numbers.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.taken.fetch_add(step, Acquire) >> CPU_BITS
    }

    /// Returns the CPU that leads, or led last.
    pub(crate) fn leader(&self) -> CpuId {
        // Relaxed: it's for reports of long waits.
        CpuId(self.taken.load(Relaxed) as u16)
    }

    /// Returns the latest number that is served.
    pub(crate) fn served(&self) -> u64 {
        // Acquire pairs with `end`: a task that finds its number served sees the flush done.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.served.load(Acquire)
    }

    /// Ends the leader's flush, which has served all numbers up to `number`.
    pub(crate) fn end(&self, number: u64) {
        // Release pairs with `served`: a task that finds its number served sees the flush done on all CPUs.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.served.store(number, Release);
    }
}
