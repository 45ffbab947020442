//! Flushes of everything that tasks share.
//!
//! Where several threads take away what they had mapped at the same time, each of them often flushes the whole space:
//! its own range is long, or a table went with it, or it cannot tell its changes from those of the others. Then `n`
//! threads interrupt every CPU `n` times, and one flush that begins after all of them have written would do for all.
//!
//! So a task takes a *number* after it has written the tables. One task at a time makes the flush: it reads how many
//! numbers are given out, flushes, and says that all up to that one are served. The others wait until theirs is, and
//! flush themselves if no flush that is over has served them. So `n` tasks that meet interrupt the CPUs once or twice.
//!
//! A number that was taken while a flush is on its way is not served by it: a CPU may have flushed already, and walked
//! the tables again, before that task wrote to them.
//!
//! The steps are [`Engine::flush_coalesced`](crate::Engine::flush_joined)'s; the words that it takes are here.

use crate::cpu_set::CpuId;
use crate::hardware::Hardware;
use crate::word::Word;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The flushes of one space that tasks share: two words that the kernel keeps beside the space, and gives to
/// [`Engine::flush_coalesced`](crate::Engine::flush_joined) with it. They are that space's alone, until it ends: with those of
/// another a task would take a flush of that space for its own.
///
/// There are 2^48 numbers, and no comparison that wraps around: a space that takes a million a second has them for nine
/// years.
pub struct CoalescedFlushes<H: Hardware> {
    /// The number that was given out last.
    asked: H::Word,
    /// A [`Served`].
    served: H::Word,
}

impl<H: Hardware> Default for CoalescedFlushes<H> {
    fn default() -> Self {
        Self::new()
    }
}

/// How far the flushes have got.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Served {
    /// The number up to which all are served.
    pub(crate) up_to: u64,
    /// The CPU that makes a flush now, if one does.
    pub(crate) by: Option<CpuId>,
}

impl Served {
    /// So many bits name a CPU: 0 is none.
    const CPU_BITS: u32 = u16::BITS;

    fn encode(self) -> u64 {
        let by = self.by.map_or(0, |cpu| u64::from(cpu.0) + 1);
        (self.up_to << Self::CPU_BITS) | by
    }

    fn decode(word: u64) -> Self {
        let by = word & ((1 << Self::CPU_BITS) - 1);
        Served {
            up_to: word >> Self::CPU_BITS,
            by: by.checked_sub(1).map(|cpu| CpuId(cpu as u16)),
        }
    }
}

impl<H: Hardware> CoalescedFlushes<H> {
    /// None was asked for yet. Never waits.
    pub fn new() -> Self {
        CoalescedFlushes {
            asked: H::Word::new(0),
            served: H::Word::new(0),
        }
    }

    /// A task that has written the tables takes its number.
    pub(crate) fn ask(&self) -> u64 {
        // Release pairs with `asked`: the flush that serves this number begins after the tables were written, and after
        // this CPU has entered the space's set.
        // Lost without it: two tasks share a flush.
        self.asked.fetch_add(1, Release) + 1
    }

    /// The number that was given out last.
    pub(crate) fn asked(&self) -> u64 {
        // Acquire pairs with `ask`: all that was written before those numbers is written before the flush that follows.
        // Lost without it: two tasks share a flush.
        self.asked.load(Acquire)
    }

    /// How far the flushes have got.
    pub(crate) fn served(&self) -> Served {
        // Acquire pairs with `end`: a task whose number is served sees the flush done.
        // Lost without it: two tasks share a flush.
        Served::decode(self.served.load(Acquire))
    }

    /// This CPU makes the next flush, unless something has changed since `seen`, where no CPU made one.
    pub(crate) fn begin(&self, seen: Served, me: CpuId) -> bool {
        let mine = Served {
            by: Some(me),
            ..seen
        };
        // Relaxed: whoever flushes reads `asked` next, where its own number is; what it serves, it flushes itself.
        self.served
            .compare_exchange(seen.encode(), mine.encode(), Relaxed, Relaxed)
            .is_ok()
    }

    /// The flush is done, for all numbers up to this one.
    pub(crate) fn end(&self, up_to: u64) {
        let served = Served { up_to, by: None };
        // Release pairs with `served`: the flush is over, on all CPUs.
        // Lost without it: two tasks share a flush.
        self.served.store(served.encode(), Release);
    }
}
