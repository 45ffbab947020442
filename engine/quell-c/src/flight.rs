//! Tracks the started flushes that end with a callback.
//!
//! A CPU checks these flushes after it has answered requests ([`Flights::look`]), and when it starts one. Only one CPU
//! checks at a time. A CPU that arrives meanwhile doesn't wait: it sets a mark ([`AGAIN`]), and the first CPU checks
//! once more. So either the last CPU to answer or the CPU that is checking finds the flush over, and calls the
//! callback. No callback is lost.

use crate::held::BatchPlace;
use crate::machine::Machine;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use quell::Hardware;

/// A function of C's that quell calls at the end of a flush.
pub(crate) type Callback = extern "C" fn(argument: *mut c_void);

/// The started flushes of an engine.
pub(crate) struct Flights {
    /// The number of started flushes.
    count: AtomicUsize,
    /// The flushes that no CPU has checked yet, linked by [`BatchPlace::next`].
    arrived: AtomicPtr<BatchPlace>,
    /// The state of the check: [`IDLE`], [`LOOKING`] or [`AGAIN`].
    state: AtomicU32,
    /// The flushes that a check found unfinished, linked likewise. Only the CPU that checks uses it.
    waiting: UnsafeCell<*mut BatchPlace>,
}

const IDLE: u32 = 0;
const LOOKING: u32 = 1;
/// A CPU checks, and another CPU has answered since it began.
const AGAIN: u32 = 2;

// SAFETY: only the CPU that has changed `state` from IDLE uses `waiting`. A batch that was added is used by that CPU
// alone until its callback is called.
unsafe impl Sync for Flights {}
// SAFETY: no part of it belongs to a thread.
unsafe impl Send for Flights {}

impl Flights {
    pub(crate) const fn new() -> Self {
        Flights {
            count: AtomicUsize::new(0),
            arrived: AtomicPtr::new(null_mut()),
            state: AtomicU32::new(IDLE),
            waiting: UnsafeCell::new(null_mut()),
        }
    }

    /// Starts the flush of a batch whose callback was written. The callback may be called before this returns.
    ///
    /// # Safety
    /// As for [`BatchPlace::start`]; until the callback is called, no code uses the batch for anything else.
    pub(crate) unsafe fn start(&self, batch: *mut BatchPlace, hw: &Machine) {
        // We count before we post the requests, so that a CPU that answers one of them sees the count. Relaxed: posting
        // releases it.
        self.count.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { BatchPlace::start(batch, true) };
        let mut first = self.arrived.load(Ordering::Relaxed);
        loop {
            // SAFETY: not in the list yet, so no other CPU uses it.
            unsafe { (*batch).next.store(first, Ordering::Relaxed) };
            // Release pairs with the Acquire swap in `look`: the CPU that checks sees the flight.
            let order = (Ordering::Release, Ordering::Relaxed);
            let added = (self.arrived).compare_exchange_weak(first, batch, order.0, order.1);
            match added {
                Ok(_) => break,
                Err(other) => first = other,
            }
        }
        // All targets may have answered before the batch was in the list: then no other CPU would check it.
        self.look(hw);
    }

    /// Calls the callback of every flush that is over.
    pub(crate) fn look(&self, hw: &Machine) {
        // Relaxed: a CPU that has answered a request of the flush sees the count.
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // We mask interrupts: a thread that is preempted during the check would delay all callbacks.
        let were_on = hw.mask_interrupts();
        self.look_masked();
        hw.restore_interrupts(were_on);
    }

    /// Looks like [`Flights::look`]. Interrupts are masked.
    pub(crate) fn look_masked(&self) {
        // Relaxed: as in `look`.
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // AcqRel, here and below: the CPU that checks sees every answer that precedes a mark that it finds. Without it,
        // it could miss a flush that is over.
        if self.state.swap(AGAIN, Ordering::AcqRel) == IDLE {
            loop {
                self.state.swap(LOOKING, Ordering::AcqRel);
                // SAFETY: only this CPU checks.
                unsafe { self.look_once() };
                let order = (Ordering::AcqRel, Ordering::Acquire);
                let ended = (self.state).compare_exchange(LOOKING, IDLE, order.0, order.1);
                if ended.is_ok() {
                    break;
                }
            }
        }
    }

    /// Checks each flush once.
    ///
    /// # Safety
    /// This CPU has changed the state from IDLE.
    unsafe fn look_once(&self) {
        let mut lists = [
            // SAFETY: only this CPU uses it.
            unsafe { self.waiting.get().replace(null_mut()) },
            self.arrived.swap(null_mut(), Ordering::Acquire),
        ];
        for list in &mut lists {
            while let Some(batch) = core::ptr::NonNull::new(*list).map(core::ptr::NonNull::as_ptr) {
                // SAFETY: a batch in the list belongs to this CPU until its callback is called.
                unsafe {
                    *list = (*batch).next.load(Ordering::Relaxed);
                    if BatchPlace::is_over(batch) {
                        self.count.fetch_sub(1, Ordering::Relaxed);
                        BatchPlace::announce(batch);
                    } else {
                        (*batch).next.store(*self.waiting.get(), Ordering::Relaxed);
                        self.waiting.get().write(batch);
                    }
                }
            }
        }
    }
}
