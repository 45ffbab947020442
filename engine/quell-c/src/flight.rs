//! Tracks the started flushes that end with a callback.
//!
//! A CPU checks these flushes after it has answered requests ([`Flights::look`]). Only one CPU checks at a time. A CPU
//! that arrives meanwhile doesn't wait: it counts itself, and the first CPU checks once more. So either the last CPU to
//! answer or the CPU that is checking finds the flush over, and calls the callback. The CPU that starts a flush checks
//! too if no CPU must answer, or if one has come meanwhile. No callback is lost.

use crate::held::BatchPlace;
use crate::machine::Machine;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quell::Hardware;

/// A function of C's that quell calls at the end of a flush.
pub(crate) type Callback = extern "C" fn(argument: *mut c_void);

/// The started flushes of an engine.
pub(crate) struct Flights {
    /// The flushes that no CPU has checked yet, linked by [`BatchPlace::next`].
    arrived: AtomicPtr<BatchPlace>,
    /// The number of times that a CPU came to check, in steps of [`CAME`], and [`LOOKING`] while one checks.
    state: AtomicU64,
    /// The flushes that a check found unfinished, linked likewise. Only the CPU that checks uses it.
    waiting: UnsafeCell<*mut BatchPlace>,
}

const LOOKING: u64 = 1;
const CAME: u64 = 2;

// SAFETY: only the CPU that has set LOOKING uses `waiting`. A batch that was added is used by that CPU alone until its
// callback is called.
unsafe impl Sync for Flights {}
// SAFETY: no part of it belongs to a thread.
unsafe impl Send for Flights {}

impl Flights {
    pub(crate) const fn new() -> Self {
        Flights {
            arrived: AtomicPtr::new(null_mut()),
            state: AtomicU64::new(0),
            waiting: UnsafeCell::new(null_mut()),
        }
    }

    /// Starts the flush of a batch whose callback was written. The callback may be called before this returns.
    ///
    /// # Safety
    /// As for [`BatchPlace::start`]; until the callback is called, no code uses the batch for anything else.
    pub(crate) unsafe fn start(&self, batch: *mut BatchPlace, hw: &Machine) {
        // Acquire, here and below: we see the answers of every CPU whose check this number counts.
        let came = self.state.load(Ordering::Acquire);
        // SAFETY: as the caller promises. No other CPU uses the batch before it's in the list.
        if unsafe { !BatchPlace::start(batch, true) && BatchPlace::is_over(batch) } {
            let were_on = hw.mask_interrupts();
            // SAFETY: it's over, and its callback was written.
            unsafe { BatchPlace::announce(batch) };
            hw.restore_interrupts(were_on);
            return;
        }
        let mut first = self.arrived.load(Ordering::Relaxed);
        loop {
            // SAFETY: not in the list yet, so no other CPU uses it.
            unsafe { (*batch).next.store(first, Ordering::Relaxed) };
            // AcqRel pairs with the swap in `look_once`: the CPU that checks later sees the flight. We see that a CPU
            // came whose check has emptied the list before.
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let added = (self.arrived).compare_exchange_weak(first, batch, order.0, order.1);
            match added {
                Ok(_) => break,
                Err(other) => first = other,
            }
        }
        // A CPU that answered and checked before the batch was in the list has missed it.
        if self.state.load(Ordering::Acquire) != came {
            self.look(hw);
        }
    }

    /// Calls the callback of every flush that is over.
    pub(crate) fn look(&self, hw: &Machine) {
        // We mask interrupts: a thread that is preempted during the check would delay all callbacks.
        let were_on = hw.mask_interrupts();
        self.look_masked();
        hw.restore_interrupts(were_on);
    }

    /// Looks like [`Flights::look`]. Interrupts are masked.
    pub(crate) fn look_masked(&self) {
        // AcqRel, here and below: the CPU that checks sees the answers of every CPU that it finds to have come. Without
        // it, it could miss a flush that is over.
        let mut seen = self.state.fetch_add(CAME, Ordering::AcqRel).wrapping_add(CAME);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let looks = |seen| self.state.compare_exchange(seen, seen | LOOKING, order.0, order.1);
        // A CPU that came later, or that checks, finds that this one has come.
        if seen & LOOKING != 0 || looks(seen).is_err() {
            return;
        }
        seen |= LOOKING;
        loop {
            // SAFETY: only this CPU checks.
            unsafe { self.look_once() };
            match self.state.compare_exchange(seen, seen & !LOOKING, order.0, order.1) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Checks each flush once.
    ///
    /// # Safety
    /// This CPU has set LOOKING.
    unsafe fn look_once(&self) {
        let mut lists = [
            // SAFETY: only this CPU uses it.
            unsafe { self.waiting.get().replace(null_mut()) },
            self.arrived.swap(null_mut(), Ordering::AcqRel),
        ];
        for list in &mut lists {
            while let Some(batch) = core::ptr::NonNull::new(*list).map(core::ptr::NonNull::as_ptr) {
                // SAFETY: a batch in the list belongs to this CPU until its callback is called.
                unsafe {
                    *list = (*batch).next.load(Ordering::Relaxed);
                    if BatchPlace::is_over(batch) {
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
