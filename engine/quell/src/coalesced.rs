//! Flushes of a whole space that several tasks share.
//!
//! If several threads unmap memory at the same time, each of them often flushes the whole space: its range is long, it
//! freed a table, or it can't tell its changes from those of the others. Then `n` threads interrupt every CPU `n`
//! times, although one flush that begins after all of them have written the tables would be enough.
//!
//! So each task takes a *number* after it has written the tables. One task at a time makes the flush: it reads the
//! latest number, flushes, and marks all numbers up to that one as served. The others wait until theirs is served. If
//! the finished flush didn't serve a task, that task makes the next one. So `n` concurrent tasks interrupt the CPUs
//! once or twice.
//!
//! A flush doesn't serve numbers that were taken after it began: a CPU may have flushed already, and walked the tables
//! again, before that task wrote to them.
//!
//! [`Cpu::flush_coalesced`](crate::Cpu::flush_coalesced) takes these steps; its words are here.

use crate::cpu_set::CpuId;
use crate::hardware::Hardware;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Counts the shared flushes of one space.
///
/// The kernel keeps these two words beside the space and passes both to
/// [`Cpu::flush_coalesced`](crate::Cpu::flush_coalesced). Use them for that space only, until it ends: otherwise a task
/// would mistake a flush of another space for its own.
///
/// There are 2^48 numbers, and we never reuse one: at a million per second they last for nine years.
///
/// # Examples
///
/// ```
/// # quell::one_cpu!(machine, engine, space);
/// use quell::{CoalescedFlushes, Page};
/// let coalesced = CoalescedFlushes::new(); // kept beside the space
/// machine.access(Page(5));
/// // Any task that has changed tables of the space:
/// engine.this_cpu().flush_coalesced(&space, &coalesced);
/// assert!(!machine.caches(Page(5)));
/// ```
pub struct CoalescedFlushes<H: Hardware> {
    /// The latest number that a task has taken.
    asked: H::Word,
    /// A [`CoalescedProgress`].
    served: H::Word,
}

impl<H: Hardware> Default for CoalescedFlushes<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// The progress of the shared flushes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoalescedProgress {
    /// All numbers up to this one are served.
    pub(crate) up_to: u64,
    /// The CPU that makes a flush now, if any.
    pub(crate) by: Option<CpuId>,
}

impl CoalescedProgress {
    /// The number of bits that encode a CPU; 0 means none.
    const CPU_BITS: u32 = u16::BITS;

    fn encode(self) -> u64 {
        let by = self.by.map_or(0, |cpu| u64::from(cpu.0) + 1);
        (self.up_to << Self::CPU_BITS) | by
    }

    fn decode(word: u64) -> Self {
        let by = word & ((1 << Self::CPU_BITS) - 1);
        CoalescedProgress {
            up_to: word >> Self::CPU_BITS,
            by: by.checked_sub(1).map(|cpu| CpuId(cpu as u16)),
        }
    }
}

impl<H: Hardware> CoalescedFlushes<H> {
    /// Makes the words of a space that has had no shared flush. Never waits.
    pub fn new() -> Self {
        CoalescedFlushes {
            asked: H::Word::new(0),
            served: H::Word::new(0),
        }
    }

    /// Takes a number, for a task that has written the tables.
    pub(crate) fn ask(&self) -> u64 {
        // Release pairs with `asked`: the flush that serves this number begins after this CPU has written the tables
        // and entered the space's set.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.asked.fetch_add(1, Release) + 1
    }

    /// Returns the latest number that a task has taken.
    pub(crate) fn asked(&self) -> u64 {
        // Acquire pairs with `ask`: the flush that follows comes after all table writes of the tasks with these
        // numbers.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.asked.load(Acquire)
    }

    pub(crate) fn served(&self) -> CoalescedProgress {
        // Acquire pairs with `end`: a task that finds its number served sees the flush done.
        // A weaker ordering fails the loom race "two tasks share a flush".
        CoalescedProgress::decode(self.served.load(Acquire))
    }

    /// Makes this CPU flush next, unless `served` has changed since `seen`. Returns whether it succeeded.
    ///
    /// In `seen` no CPU was flushing.
    pub(crate) fn begin(&self, seen: CoalescedProgress, me: CpuId) -> bool {
        let mine = CoalescedProgress {
            by: Some(me),
            ..seen
        };
        // Relaxed: the flushing CPU reads `asked` next, with Acquire. That covers its own number and every other one
        // that its flush serves.
        self.served
            .compare_exchange(seen.encode(), mine.encode(), Relaxed, Relaxed)
            .is_ok()
    }

    /// Ends the flush, which has served all numbers up to `up_to`.
    pub(crate) fn end(&self, up_to: u64) {
        let served = CoalescedProgress { up_to, by: None };
        // Release pairs with `served`: a task that finds its number served sees the flush done on all CPUs.
        // A weaker ordering fails the loom race "two tasks share a flush".
        self.served.store(served.encode(), Release);
    }
}
