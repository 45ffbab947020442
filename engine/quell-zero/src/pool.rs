//! Frames known to be zero, ready before they are asked for.
//!
//! A [`Pool`] is filled by an idle thread through [`Pool::fill`] and emptied by faults through
//! [`Pool::take`], which costs one load when it is empty and a scan of the slots up to the first
//! frame when it is not. Clearing in the background is not free: it takes memory bandwidth from programs
//! that run, and a frame cleared long ago is cold when it is read. The [`Budget`] bounds the
//! first; a program that reads the whole frame at once is better served by [`Clearer::frame`].
//!
//! Nothing here allocates or locks. The slots are words that the embedder provides; each holds
//! either nothing or one frame, moved in and out by a compare-and-exchange. A CPU that stops in
//! the middle of any operation holds no other up; at worst it keeps the one frame it was moving.

use crate::clearer::Clearer;
use crate::machine::Clear;
use crate::zeroed::{Clearable, Zeroed};
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use quell::Word;

/// A [`Clearable`] that fits into one word of a [`Pool`].
pub trait Pooled: Clearable + Sized {
    /// Converts the value into a number below [`u64::MAX`], which now owns it.
    fn into_raw(self) -> u64;
    /// Restores the value from `raw`.
    ///
    /// # Safety
    /// [`Pooled::into_raw`] has returned `raw`, and the value has not been taken back since.
    unsafe fn from_raw(raw: u64) -> Self;
}

/// A budget of memory bandwidth: bytes per tick, with bursts up to a limit.
///
/// A token bucket in one word. The word holds the point of the budget's whole history, counted in
/// bytes, up to which it is spent; the bucket is full when that lies `burst` bytes or more in the
/// past. The caller supplies the time, in ticks that it chooses (microseconds are a good choice:
/// the rate is then in megabytes per second). Clocks of CPUs that disagree a little make the
/// budget wrong by as much and nothing worse. Arithmetic wraps, so a bucket that is used at least
/// once in 2^63 bytes' worth of ticks never stalls.
///
/// # Examples
///
/// ```
/// use quell_zero::Budget;
/// use std::sync::atomic::AtomicU64;
/// // 2 bytes a tick, and at most 4096 at once, from time 0.
/// let budget = Budget::<AtomicU64>::new(2, 4096, 0);
/// assert!(budget.try_spend(4096, 0));
/// assert!(!budget.try_spend(4096, 2047)); // one tick too early
/// assert!(budget.try_spend(4096, 2048));
/// ```
#[derive(Debug)]
pub struct Budget<W> {
    spent: W,
    bytes_per_tick: u64,
    burst: u64,
}

impl<W: Word> Budget<W> {
    /// Makes a budget of `bytes_per_tick`, full at time `now` with `burst` bytes. A budget without a burst grants
    /// nothing.
    pub fn new(bytes_per_tick: u64, burst: u64, now: u64) -> Self {
        let burst = burst.min(i64::MAX as u64);
        let earned = now.wrapping_mul(bytes_per_tick);
        Budget {
            spent: W::new(earned.wrapping_sub(burst)),
            bytes_per_tick,
            burst,
        }
    }

    /// Takes `bytes` out of the budget if it holds that many, and returns whether it did.
    ///
    /// A request larger than the burst is granted when the budget is full; later requests then wait longer.
    pub fn try_spend(&self, bytes: u64, now: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let earned = now.wrapping_mul(self.bytes_per_tick);
        // Relaxed: the word orders nothing but itself.
        let mut held = self.spent.load(Relaxed);
        loop {
            let unspent = (earned.wrapping_sub(held) as i64).clamp(0, self.burst as i64) as u64;
            if unspent == 0 || unspent < bytes.min(self.burst) {
                return false;
            }
            // Budget earned beyond the burst is lost.
            let base = earned.wrapping_sub(unspent);
            let next = base.wrapping_add(bytes);
            match self.spent.compare_exchange(held, next, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(current) => held = current,
            }
        }
    }

    /// Returns unused bytes to the budget.
    fn refund(&self, bytes: u64) {
        self.spent.fetch_add(bytes.wrapping_neg(), Relaxed);
    }
}

/// The result of [`Pool::fill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Frames cleared and put into the pool.
    pub frames: u64,
    /// The reason for stopping.
    pub stopped: Stopped,
}

/// The reason why [`Pool::fill`] stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// No slot is free.
    Full,
    /// The budget of bandwidth is spent for now.
    Budget,
    /// The source has no more frames to give.
    Source,
}

/// A pool of frames known to be zero, all of one length.
///
/// All operations may be called from any CPU at any time, from interrupt handlers too.
pub struct Pool<'a, W, F> {
    slots: &'a [W],
    /// Slots that are filled or reserved, so never less than the frames in the slots. A slot is
    /// reserved before a frame is put in, and a slot is emptied before the count goes down.
    reserved: W,
    frame_bytes: u64,
    owner: PhantomData<fn(F) -> F>,
}

/// A slot with no frame in it.
const EMPTY: u64 = 0;

impl<'a, W: Word, F: Pooled> Pool<'a, W, F> {
    /// Makes an empty pool of frames of `frame_bytes` each, one per slot.
    ///
    /// The pool owns `slots` and empties them without freeing what they held; never share them with another pool. A few
    /// dozen slots are enough: the rate at which the pool is filled matters more.
    pub fn new(slots: &'a mut [W], frame_bytes: u64) -> Self {
        for slot in &*slots {
            slot.store(EMPTY, Relaxed);
        }
        Pool {
            slots,
            reserved: W::new(0),
            frame_bytes,
            owner: PhantomData,
        }
    }

    /// Returns the number of frames in the pool, including those being cleared for it. It may already have changed.
    pub fn len(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Returns whether the pool held no frame a moment ago.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many frames the pool can hold.
    pub fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Puts a zeroed frame into the pool.
    ///
    /// # Errors
    ///
    /// Gives the frame back if the pool is full.
    ///
    /// # Panics
    ///
    /// In debug builds, if [`Pooled::into_raw`] returns [`u64::MAX`].
    pub fn put(&self, frame: Zeroed<F>) -> Result<(), Zeroed<F>> {
        if !self.reserve() {
            return Err(frame);
        }
        self.insert(frame);
        Ok(())
    }

    /// Takes a zeroed frame out, if there is one. It may miss a frame that is put in meanwhile.
    pub fn take(&self) -> Option<Zeroed<F>> {
        if self.is_empty() {
            return None;
        }
        for slot in self.slots {
            let held = slot.load(Relaxed);
            // Acquire pairs with `insert`: the frame's next owner sees the zeros, also if it was taken and
            // put back since the load.
            // Lost without it: zeroed frames change hands.
            if held != EMPTY && slot.compare_exchange(held, EMPTY, Acquire, Relaxed).is_ok() {
                self.cancel();
                // SAFETY: `insert` put it there, no other pool uses the slots, and the exchange lets one alone take it.
                let frame = unsafe { F::from_raw(held - 1) };
                return Some(Zeroed::unchecked(frame));
            }
        }
        None
    }

    /// Zeroes frames from `source` and puts them into the pool, for a background task.
    ///
    /// It stops when the pool is full, the budget is spent at time `now`, or the source is empty.
    ///
    /// `source` is asked only when there is a slot and a budget for a frame, so none is lost. The
    /// frames are cleared by `clearer`, around the caches, with `preempt` called between pieces and between
    /// frames.
    ///
    /// # Panics
    ///
    /// In debug builds, if a frame of `source` is not of the pool's length, and as [`Pool::put`].
    pub fn fill<M: Clear>(
        &self,
        clearer: &Clearer<'_, M>,
        budget: &Budget<W>,
        now: u64,
        mut source: impl FnMut() -> Option<F>,
        mut preempt: impl FnMut(),
    ) -> Filled {
        let mut frames = 0;
        let stopped = loop {
            if !self.reserve() {
                break Stopped::Full;
            }
            // Programs that run need the memory's bandwidth more than the pool does. [mutant PoolIgnoresBudget]
            if !budget.try_spend(self.frame_bytes, now) {
                self.cancel();
                break Stopped::Budget;
            }
            let Some(frame) = source() else {
                self.cancel();
                budget.refund(self.frame_bytes);
                break Stopped::Source;
            };
            debug_assert_eq!(frame.extent().bytes(), self.frame_bytes);
            if frames > 0 {
                preempt();
            }
            // A fault that takes the frame out does not clear it again. [mutant PoolHandsOutDirty]
            let (frame, _) = clearer.frame(frame, None, &mut preempt);
            self.insert(frame);
            frames += 1;
        };
        Filled { frames, stopped }
    }

    /// Reserves a slot. Returns `false` if there is none.
    fn reserve(&self) -> bool {
        // Relaxed: the count publishes nothing; the slots do.
        if self.reserved.fetch_add(1, Relaxed) < self.capacity() {
            return true;
        }
        self.cancel();
        false
    }

    /// Gives a reservation back.
    fn cancel(&self) {
        self.reserved.fetch_add(u64::MAX, Relaxed);
    }

    /// Puts a frame in for which a slot is reserved.
    fn insert(&self, frame: Zeroed<F>) {
        let raw = frame.into_inner().into_raw();
        debug_assert_ne!(raw, u64::MAX, "Pooled::into_raw must stay below u64::MAX");
        // There are never more reservations than slots, so one slot is free; a round finds none
        // only if other CPUs put frames in ahead of it.
        loop {
            for slot in self.slots {
                // Release: the zeros are written before the frame can be seen here.
                if slot.load(Relaxed) == EMPTY
                    && slot
                        // Release pairs with `take`: the zeros are written before the frame can be seen here.
                        // Lost without it: zeroed frames change hands.
                        .compare_exchange(EMPTY, raw + 1, Release, Relaxed)
                        .is_ok()
                {
                    return;
                }
            }
        }
    }
}
