//! Flushes of a whole space that several tasks share.
//!
//! If several threads unmap memory at the same time, each of them often flushes the whole space: its range is long, it
//! freed a table, or it cannot tell its changes from those of the others. Then `n` threads interrupt every CPU `n`
//! times, although one flush that begins after all of them have written would be enough.
//!
//! So a task takes a *number* after it has written the tables. One task at a time makes the flush: it reads the latest
//! number, flushes, and marks all numbers up to that one as served. The others wait until theirs is served, and flush
//! themselves if the finished flush did not serve them. So `n` concurrent tasks interrupt the CPUs once or twice.
//!
//! A flush does not serve numbers that were taken after it began: a CPU may have flushed already, and walked the tables
//! again, before that task wrote to them.
//!
//! [`Cpu::flush_coalesced`](crate::Cpu::flush_coalesced) takes these steps; its words are here.

use crate::cpu_set::CpuId;
use crate::hardware::Hardware;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Counts the shared flushes of one space. The kernel keeps these two words beside the space and passes both to
/// [`Cpu::flush_coalesced`](crate::Cpu::flush_coalesced). Use them for that space only, until it ends: otherwise
/// a task would take a flush of another space for its own.
///
/// There are 2^48 numbers, which never wrap around: at a million a second they last for nine years.
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
    /// The latest number taken.
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
    /// The CPU that is making a flush now, if any.
    pub(crate) by: Option<CpuId>,
}

impl CoalescedProgress {
    /// The number of bits that name a CPU; 0 is none.
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
    /// Makes the words of a space for which no flush was requested yet. Never waits.
    pub fn new() -> Self {
        CoalescedFlushes {
            asked: H::Word::new(0),
            served: H::Word::new(0),
        }
    }

    /// Takes a number, for a task that has written the tables.
    pub(crate) fn ask(&self) -> u64 {
        // Release pairs with `asked`: the flush that serves this number begins after the tables were written, and after
        // this CPU has entered the space's set.
        // Lost without it: two tasks share a flush.
        self.asked.fetch_add(1, Release) + 1
    }

    /// The latest number taken.
    pub(crate) fn asked(&self) -> u64 {
        // Acquire pairs with `ask`: all that was written before those numbers is written before the flush that follows.
        // Lost without it: two tasks share a flush.
        self.asked.load(Acquire)
    }

    /// The progress of the shared flushes.
    pub(crate) fn served(&self) -> CoalescedProgress {
        // Acquire pairs with `end`: a task whose number is served sees the flush done.
        // Lost without it: two tasks share a flush.
        CoalescedProgress::decode(self.served.load(Acquire))
    }

    /// Makes this CPU the one that flushes next, unless something has changed since `seen`, when no CPU was flushing.
    /// Returns whether it succeeded.
    pub(crate) fn begin(&self, seen: CoalescedProgress, me: CpuId) -> bool {
        let mine = CoalescedProgress {
            by: Some(me),
            ..seen
        };
        // Relaxed: the flushing CPU reads `asked` next, which covers its own number, and flushes itself for all that it
        // serves.
        self.served
            .compare_exchange(seen.encode(), mine.encode(), Relaxed, Relaxed)
            .is_ok()
    }

    /// Ends the flush, which has served all numbers up to this one.
    pub(crate) fn end(&self, up_to: u64) {
        let served = CoalescedProgress { up_to, by: None };
        // Release pairs with `served`: the flush is over, on all CPUs.
        // Lost without it: two tasks share a flush.
        self.served.store(served.encode(), Release);
    }
}
