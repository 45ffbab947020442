//! The started flushes that end with a callback.
//!
//! Each CPU that has answered requests looks at them ([`Flights::look`]), as does the CPU that starts one. One CPU looks
//! at a time. Another one that comes meanwhile does not wait: it leaves a mark, and the first one looks again. So the
//! last CPU to answer, or the one that looks, finds the flush over, and calls back.

use crate::held::BatchPlace;
use crate::machine::Machine;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use quell::Hardware;

/// A function that C wants to be called.
pub(crate) type Callback = extern "C" fn(argument: *mut c_void);

/// The started flushes of an engine.
pub(crate) struct Flights {
    /// How many there are.
    count: AtomicUsize,
    /// Those that nobody has looked at yet, linked by [`BatchPlace::next`].
    arrived: AtomicPtr<BatchPlace>,
    /// Whether a CPU looks at them: [`IDLE`], [`LOOKING`] or [`AGAIN`].
    state: AtomicU32,
    /// The others, linked likewise. Only the CPU that looks uses it.
    waiting: UnsafeCell<*mut BatchPlace>,
}

const IDLE: u32 = 0;
const LOOKING: u32 = 1;
/// A CPU looks, and another one has answered since.
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
    /// As for [`BatchPlace::start`]; until the callback is called, the batch is used for nothing else.
    pub(crate) unsafe fn start(&self, batch: *mut BatchPlace, hw: &Machine) {
        // Before the requests are posted: a CPU that answers one of them sees the count. Relaxed: posting releases it.
        self.count.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { BatchPlace::start(batch, true) };
        let mut first = self.arrived.load(Ordering::Relaxed);
        loop {
            // SAFETY: not in the list yet, so nobody else uses it.
            unsafe { (*batch).next.store(first, Ordering::Relaxed) };
            // Release pairs with the Acquire swap in `look`: the CPU that looks sees the flight.
            let order = (Ordering::Release, Ordering::Relaxed);
            let added = (self.arrived).compare_exchange_weak(first, batch, order.0, order.1);
            match added {
                Ok(_) => break,
                Err(other) => first = other,
            }
        }
        // All targets may have answered before the batch was in the list.
        self.look(hw);
    }

    /// Calls back for every flush that is over.
    pub(crate) fn look(&self, hw: &Machine) {
        // Relaxed: a CPU that has answered a request of the flush sees the count.
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        // A thread that is preempted while it looks would keep all callbacks back.
        let were_on = hw.mask_interrupts();
        // AcqRel, here and below: the CPU that looks sees every answer that was given before a mark that it finds.
        if self.state.swap(AGAIN, Ordering::AcqRel) == IDLE {
            loop {
                self.state.swap(LOOKING, Ordering::AcqRel);
                // SAFETY: this CPU looks.
                unsafe { self.look_once() };
                let order = (Ordering::AcqRel, Ordering::Acquire);
                let ended = (self.state).compare_exchange(LOOKING, IDLE, order.0, order.1);
                if ended.is_ok() {
                    break;
                }
            }
        }
        hw.restore_interrupts(were_on);
    }

    /// Looks at each flush.
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
                // SAFETY: a batch of the list is this CPU's until its callback is called.
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
