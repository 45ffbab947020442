//! Implements the lock of a page table's words: a queue in which each CPU waits on its own line (MCS).
//!
//! Many CPUs change one table at the same time. Suppose that all of them waited on the lock's word. Then each release
//! would move its line to all of them, and each failed attempt would move it once more. Here a release writes one line,
//! which one CPU reads. Linux's locks hand over in the same way.
//!
//! Waiters take interrupts as in [`crate::lock`].

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, Ordering};
use quell::{Hardware, Word};

/// How many tables a CPU locks at the same time: a parent and its child, or the two of a move.
const DEPTH: usize = 2;

/// A place in a queue.
#[repr(align(64))]
struct Place<W> {
    /// 0 from when the CPU has the lock.
    waits: W,
    /// The number of the next place, or 0.
    next: W,
}

/// The places of one CPU.
struct CpuPlaces<W> {
    places: [Place<W>; DEPTH],
    /// A bit for each place that is in use. Only this CPU looks at it.
    used: AtomicU32,
}

/// The places in which CPUs wait, or that they have while they hold a lock.
pub(crate) struct Places<W>(Box<[CpuPlaces<W>]>);

impl<W: Word> Places<W> {
    pub(crate) fn new(cpus: usize) -> Self {
        let word = || W::new(0);
        let place = || Place { waits: word(), next: word() };
        let cpu =
            || CpuPlaces { places: core::array::from_fn(|_| place()), used: AtomicU32::new(0) };
        Places((0..cpus).map(|_| cpu()).collect())
    }

    /// Takes a place of a CPU. Numbers begin at 1.
    fn take(&self, cpu: usize) -> u64 {
        let used = &self.0[cpu].used;
        // Relaxed: nothing else looks at it, and interrupt handlers lock nothing.
        let held = used.load(Ordering::Relaxed);
        let free = held.trailing_ones() as usize;
        assert!(free < DEPTH, "a CPU locks more than {DEPTH} tables");
        used.store(held | 1 << free, Ordering::Relaxed);
        (cpu * DEPTH + free) as u64 + 1
    }

    fn get(&self, number: u64) -> &Place<W> {
        let index = number as usize - 1;
        &self.0[index / DEPTH].places[index % DEPTH]
    }

    /// Gives a place back. Only the CPU that took it does so.
    fn put(&self, number: u64) {
        let index = number as usize - 1;
        let used = &self.0[index / DEPTH].used;
        let held = used.load(Ordering::Relaxed);
        used.store(held & !(1 << (index % DEPTH)), Ordering::Relaxed);
    }
}

/// The lock of a table's words.
pub(crate) struct TableLock<W> {
    /// The number of the last place in the queue; 0 while no CPU holds the lock.
    last: W,
}

impl<W: Word> TableLock<W> {
    pub(crate) fn new() -> Self {
        TableLock { last: W::new(0) }
    }

    /// Returns whether some CPU holds the lock; that may change at once.
    pub(crate) fn is_held(&self) -> bool {
        self.last.load(Ordering::Relaxed) != 0
    }

    /// Waits for the lock.
    #[cfg_attr(not(test), track_caller)]
    pub(crate) fn lock<'l, H: Hardware<Word = W>>(
        &'l self,
        hw: &'l H,
        places: &'l Places<W>,
    ) -> TableLockGuard<'l, H> {
        let mine = places.take(hw.this_cpu().index());
        let place = places.get(mine);
        place.next.store(0, Ordering::Relaxed);
        place.waits.store(1, Ordering::Relaxed);
        // Release pairs with the swap of the next CPU, which finds this place empty. Acquire pairs with that, and with
        // the exchange in `next`: this CPU sees the last holder's writes.
        // Lost without it: two CPUs lock a table.
        let before = self.last.swap(mine, Ordering::AcqRel);
        if before != 0 {
            // Release pairs with `next`: the holder ends a wait that has begun.
            // Lost without it: two CPUs lock a table.
            places.get(before).next.store(mine, Ordering::Release);
            // Acquire pairs with `drop`: this CPU sees the last holder's writes.
            // Lost without it: two CPUs lock a table.
            while place.waits.load(Ordering::Acquire) != 0 {
                hw.relax();
            }
        }
        TableLockGuard { lock: self, hw, places, mine }
    }
}

/// A guard of a [`TableLock`].
#[must_use = "the lock is given up with the guard"]
pub(crate) struct TableLockGuard<'l, H: Hardware> {
    lock: &'l TableLock<H::Word>,
    hw: &'l H,
    places: &'l Places<H::Word>,
    mine: u64,
}

impl<H: Hardware> TableLockGuard<'_, H> {
    /// Returns the place that follows, or gives the lock up if there is none.
    fn next(&self) -> Option<u64> {
        let next = &self.places.get(self.mine).next;
        // Acquire, here and below, pairs with `lock`: the next CPU's wait has begun.
        // Lost without it: two CPUs lock a table.
        let mut number = next.load(Ordering::Acquire);
        if number == 0 {
            // Release pairs with the swap in `lock`: the next holder sees this one's writes.
            // Lost without it: two CPUs lock a table.
            let last = &self.lock.last;
            let freed = last.compare_exchange(self.mine, 0, Ordering::Release, Ordering::Relaxed);
            if freed.is_ok() {
                return None;
            }
        }
        // A CPU that is in the queue may not have written its number here yet.
        while number == 0 {
            self.hw.relax();
            number = next.load(Ordering::Acquire);
        }
        Some(number)
    }
}

impl<H: Hardware> Drop for TableLockGuard<'_, H> {
    fn drop(&mut self) {
        if let Some(next) = self.next() {
            let place = self.places.get(next);
            // Release pairs with `lock`: the next holder sees this one's writes.
            // Lost without it: two CPUs lock a table.
            place.waits.store(0, Ordering::Release);
        }
        self.places.put(self.mine);
    }
}
