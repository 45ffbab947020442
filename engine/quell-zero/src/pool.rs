//! Keeps frames that were zeroed before they're needed.
//!
//! An idle thread fills a [`Pool`] with [`Pool::fill`], and page faults empty it with [`Pool::take`]. A take costs one
//! load if the pool is empty, and otherwise a scan of the slots up to the first frame. Clearing in the background isn't
//! free. It takes memory bandwidth from running programs, which a [`Budget`] limits. And a frame that was cleared long
//! ago is no longer cached when it's read: for a program that reads the whole frame at once, [`Clearer::frame`] is
//! better.
//!
//! Nothing here allocates or locks. The slots are words that the kernel provides. Each is empty or holds one frame,
//! which a compare-and-exchange moves in or out. If a CPU stops in the middle of an operation, no other CPU is blocked.
//! At worst, the one frame that it was moving isn't available.

use crate::clearer::Clearer;
use crate::machine::PhysicalMemory;
use crate::zeroed::{OwnedMemory, ZeroedFrame};
use core::marker::PhantomData;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use quell::Word;

/// Converts [`OwnedMemory`] into a number that fits into one word of a [`Pool`].
///
/// # Examples
///
/// ```
/// use quell::{Extent, Frame};
/// use quell_zero::{OwnedMemory, PooledMemory};
/// /// A frame from the kernel's allocator.
/// struct OwnedFrame(u64);
/// // SAFETY: the allocator gives each frame to one owner.
/// unsafe impl OwnedMemory for OwnedFrame {
///     fn extent(&self) -> Extent {
///         Extent { first: Frame(self.0), frames: 1 }
///     }
/// }
/// impl PooledMemory for OwnedFrame {
///     fn into_raw(self) -> u64 {
///         self.0
///     }
///     unsafe fn from_raw(raw: u64) -> Self {
///         OwnedFrame(raw)
///     }
/// }
/// let raw = OwnedFrame(42).into_raw();
/// // SAFETY: the number comes from `into_raw` and is used once.
/// let frame = unsafe { OwnedFrame::from_raw(raw) };
/// assert_eq!(frame.extent().first, Frame(42));
/// ```
pub trait PooledMemory: OwnedMemory + Sized {
    /// Converts the value into a number below [`u64::MAX`], which now owns it.
    fn into_raw(self) -> u64;
    /// Restores the value from `raw`.
    ///
    /// # Safety
    /// [`PooledMemory::into_raw`] has returned `raw`, and no other call has restored the value since.
    unsafe fn from_raw(raw: u64) -> Self;
}

/// Limits memory bandwidth to a number of bytes per tick, with limited bursts.
///
/// It's a token bucket in one word, which all CPUs may use at once. The caller passes the time, in ticks of its choice.
/// For example, with ticks of a microsecond the rate is in megabytes per second. If the clocks of CPUs disagree, the
/// budget is wrong by as much, and nothing worse happens. Numbers wrap around, which is harmless if the budget is used
/// at least once in the time in which it grows by 2^63 bytes.
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
    /// Makes a budget of `bytes_per_tick`, which holds at most `burst` bytes.
    ///
    /// It's full at time `now`. With a `burst` of 0 it grants nothing.
    pub fn new(bytes_per_tick: u64, burst: u64, now: u64) -> Self {
        let burst = burst.min(i64::MAX as u64);
        let earned = now.wrapping_mul(bytes_per_tick);
        Budget { spent: W::new(earned.wrapping_sub(burst)), bytes_per_tick, burst }
    }

    /// Takes `bytes` from the budget if it has enough. Returns whether it did.
    ///
    /// A request for more than the burst succeeds when the budget is full. Later requests then fail for longer.
    pub fn try_spend(&self, bytes: u64, now: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        let earned = now.wrapping_mul(self.bytes_per_tick);
        // Relaxed: the word orders no other memory.
        let mut held = self.spent.load(Relaxed);
        loop {
            let unspent = (earned.wrapping_sub(held) as i64).clamp(0, self.burst as i64) as u64;
            if unspent == 0 || unspent < bytes.min(self.burst) {
                return false;
            }
            // The budget beyond the burst is lost.
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

/// Returned by [`Pool::fill`]: its number of frames, and the reason why it stopped.
///
/// # Examples
///
/// ```
/// use quell_zero::{FillResult, StopReason};
/// /// Returns whether an idle thread should try again when the budget has grown.
/// fn waits(result: FillResult) -> bool {
///     result.stopped == StopReason::Budget
/// }
/// assert!(!waits(FillResult { frames: 3, stopped: StopReason::Full }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FillResult {
    /// The number of frames that were zeroed and put into the pool.
    pub frames: u64,
    /// The reason why it stopped.
    pub stopped: StopReason,
}

/// Gives the reason why [`Pool::fill`] stopped.
///
/// # Examples
///
/// ```
/// use quell_zero::StopReason;
/// /// Returns the remedy for a pool that stays too small.
/// fn remedy(reason: StopReason) -> &'static str {
///     match reason {
///         StopReason::Full => "lend more slots",
///         StopReason::Budget => "allow more bytes per tick",
///         StopReason::Source => "free memory",
///     }
/// }
/// assert_eq!(remedy(StopReason::Source), "free memory");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// No slot is free.
    Full,
    /// The budget of bandwidth is spent for now.
    Budget,
    /// The source has no more frames.
    Source,
}

/// Holds frames that contain only zeros, all of one length.
///
/// You may call all methods on any CPU at any time, also in interrupt handlers. They never wait for another CPU.
///
/// # Examples
///
/// ```
/// use quell::PAGE_BYTES;
/// use quell_zero::{Budget, ClearPolicy, Clearer, FillResult, Pool, StopReason};
/// use std::sync::atomic::AtomicU64;
/// # use quell::{Extent, Frame};
/// # use quell_zero::{OwnedMemory, PhysicalMemory, PooledMemory, Strategy};
/// # struct Machine;
/// # impl PhysicalMemory for Machine { unsafe fn zero(&self, _: Extent, _: Strategy) {} }
/// # struct OwnedFrame(u64);
/// # // SAFETY: the machine has no memory.
/// # unsafe impl OwnedMemory for OwnedFrame {
/// #     fn extent(&self) -> Extent { Extent { first: Frame(self.0), frames: 1 } }
/// # }
/// # impl PooledMemory for OwnedFrame {
/// #     fn into_raw(self) -> u64 { self.0 }
/// #     unsafe fn from_raw(raw: u64) -> Self { OwnedFrame(raw) }
/// # }
/// # let (machine, policy, mut numbers) = (Machine, ClearPolicy::default(), 0..);
/// # let mut allocate = || numbers.next().map(OwnedFrame);
/// let mut slots = [(); 8].map(|()| AtomicU64::new(0));
/// let pool = Pool::<_, OwnedFrame>::new(&mut slots, PAGE_BYTES);
/// // In an idle thread, with a budget of three pages for now:
/// let budget = Budget::new(1, 3 * PAGE_BYTES, 0);
/// let clearer = Clearer::new(&machine, &policy);
/// let result = pool.fill(&clearer, &budget, 0, &mut allocate, || ());
/// assert_eq!(result, FillResult { frames: 3, stopped: StopReason::Budget });
/// // In a fault:
/// let frame = pool.take().unwrap();
/// assert_eq!((frame.get().0, pool.len()), (0, 2));
/// ```
pub struct Pool<'a, W, F> {
    slots: &'a [W],
    /// The number of slots that are filled or reserved, which is never less than the number of frames in the slots. We
    /// reserve a slot before we put a frame in, and empty a slot before we decrement the count.
    reserved: W,
    frame_bytes: u64,
    owner: PhantomData<fn(F) -> F>,
}

/// A slot with no frame in it.
const EMPTY: u64 = 0;

impl<'a, W: Word, F: PooledMemory> Pool<'a, W, F> {
    /// Makes an empty pool of frames of `frame_bytes` each, one per slot.
    ///
    /// The pool borrows `slots` for itself, and sets them to empty without freeing any frames in them. A few dozen
    /// slots are enough, because the rate at which the pool is filled matters more.
    pub fn new(slots: &'a mut [W], frame_bytes: u64) -> Self {
        for slot in &*slots {
            slot.store(EMPTY, Relaxed);
        }
        Pool { slots, reserved: W::new(0), frame_bytes, owner: PhantomData }
    }

    /// Returns the number of frames in the pool, including those being zeroed for it.
    ///
    /// The number may change at any time.
    pub fn len(&self) -> u64 {
        self.reserved.load(Relaxed)
    }

    /// Returns whether the pool is empty. That may change at any time.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of frames that the pool can hold.
    pub fn capacity(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Puts a zeroed frame into the pool.
    ///
    /// # Errors
    ///
    /// Returns the frame if the pool is full.
    ///
    /// # Panics
    ///
    /// In debug builds, if [`PooledMemory::into_raw`] returns [`u64::MAX`].
    pub fn put(&self, frame: ZeroedFrame<F>) -> Result<(), ZeroedFrame<F>> {
        if !self.reserve() {
            return Err(frame);
        }
        self.insert(frame);
        Ok(())
    }

    /// Takes a zeroed frame out of the pool.
    ///
    /// Returns `None` if there is none. It may miss a frame that is put in meanwhile.
    pub fn take(&self) -> Option<ZeroedFrame<F>> {
        if self.is_empty() {
            return None;
        }
        for slot in self.slots {
            let held = slot.load(Relaxed);
            // Acquire pairs with the Release in `insert`: the frame's next owner sees the zeros, even if the frame was
            // taken and put back since the load. Without it, the next owner could read old content.
            if held != EMPTY && slot.compare_exchange(held, EMPTY, Acquire, Relaxed).is_ok() {
                self.cancel();
                // SAFETY: `insert` put it there, no other pool uses the slots, and the exchange succeeds on one CPU
                // only.
                let frame = unsafe { F::from_raw(held - 1) };
                return Some(ZeroedFrame::unchecked(frame));
            }
        }
        None
    }

    /// Zeroes frames from `source` and puts them into the pool.
    ///
    /// Call it in a background task. It stops when the pool is full, the budget at time `now` is spent, or `source`
    /// returns `None`.
    ///
    /// We call `source` only after we have reserved a slot and a budget for its frame, so no frame is lost. `clearer`
    /// zeroes the frames around the caches. We call `preempt` between pieces and between frames.
    ///
    /// # Panics
    ///
    /// In debug builds, if a frame from `source` doesn't have the pool's length. Also as [`Pool::put`].
    pub fn fill<M: PhysicalMemory>(
        &self,
        clearer: &Clearer<'_, M>,
        budget: &Budget<W>,
        now: u64,
        mut source: impl FnMut() -> Option<F>,
        mut preempt: impl FnMut(),
    ) -> FillResult {
        let mut frames = 0;
        let stopped = loop {
            if !self.reserve() {
                break StopReason::Full;
            }
            // Running programs need the memory's bandwidth more than the pool does. [mutant PoolIgnoresBudget]
            if !budget.try_spend(self.frame_bytes, now) {
                self.cancel();
                break StopReason::Budget;
            }
            let Some(frame) = source() else {
                self.cancel();
                budget.refund(self.frame_bytes);
                break StopReason::Source;
            };
            debug_assert_eq!(frame.extent().bytes(), self.frame_bytes);
            if frames > 0 {
                preempt();
            }
            // A fault that takes the frame out doesn't clear it again. [mutant PoolHandsOutDirty]
            let (frame, _) = clearer.frame(frame, None, &mut preempt);
            self.insert(frame);
            frames += 1;
        };
        FillResult { frames, stopped }
    }

    /// Reserves a slot. Returns whether there was one.
    fn reserve(&self) -> bool {
        // Relaxed: the slots publish the frames, not the count.
        if self.reserved.fetch_add(1, Relaxed) < self.capacity() {
            return true;
        }
        self.cancel();
        false
    }

    /// Cancels a reservation.
    fn cancel(&self) {
        self.reserved.fetch_add(u64::MAX, Relaxed);
    }

    /// Puts a frame into a slot. The caller has reserved one.
    fn insert(&self, frame: ZeroedFrame<F>) {
        let raw = frame.into_inner().into_raw();
        debug_assert_ne!(raw, u64::MAX, "PooledMemory::into_raw must stay below u64::MAX");
        // There are never more reservations than slots, so one slot is free. A round finds none only if other CPUs put
        // frames in ahead of us.
        loop {
            for slot in self.slots {
                if slot.load(Relaxed) == EMPTY
                    && slot
                        // Release pairs with the Acquire in `take`: the zeros are written before a CPU can take the
                        // frame. Without it, the next owner could read old content.
                        .compare_exchange(EMPTY, raw + 1, Release, Relaxed)
                        .is_ok()
                {
                    return;
                }
            }
        }
    }
}
