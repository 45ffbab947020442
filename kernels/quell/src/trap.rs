//! Handles faults and interrupts after the architecture has decoded them.

use crate::cause::{Fault, Interrupt};
use crate::{cpu, watchdog};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, Ordering::Relaxed};

/// Counts a page fault of user mode or of the kernel's accessors. For the watchdog, it's progress.
pub fn note_fault(fault: &Fault) {
    let counters = &cpu::this().counters;
    if fault.user { &counters.user_faults } else { &counters.kernel_faults }.add(1);
    watchdog::progress();
}

/// The nanoseconds between a timer tick and the next, or 0 if there is none.
static TICK: AtomicU64 = AtomicU64::new(0);

/// Starts timer ticks on this CPU. If `nanoseconds` is 0, ends them everywhere after the next one.
pub fn set_tick(nanoseconds: u64) {
    TICK.store(nanoseconds, Relaxed);
    if nanoseconds != 0 {
        crate::arch::interrupts::set_timer(nanoseconds);
    }
}

/// Handles an interrupt that arrived at `pc`, with interrupts masked, after it was acknowledged.
pub fn interrupt(interrupt: Interrupt, pc: u64) {
    let this = cpu::this();
    this.last_pc.store(pc, Relaxed);
    match interrupt {
        Interrupt::Shootdown => {
            let counters = &this.counters;
            counters.shootdowns_taken.add(1);
            let before = counters.invalidations();
            on_shootdown();
            let done = counters.invalidations() - before;
            counters.remote_invalidations.add(done);
        }
        Interrupt::Wake => this.counters.interrupts.add(1),
        Interrupt::Timer => {
            this.counters.interrupts.add(1);
            let tick = TICK.load(Relaxed);
            if tick != 0 {
                crate::arch::interrupts::set_timer(tick);
            }
        }
    }
}

static ON_NMI: spin::Once<fn()> = spin::Once::new();

/// Sets what the handler of non-maskable interrupts does besides counting. It must not take a lock.
pub fn on_nmi(handler: fn()) {
    ON_NMI.call_once(|| handler);
}

/// Handles a non-maskable interrupt. It takes no lock.
///
/// # Panics
/// If it interrupted the handler of another, because the return of that one is then lost.
#[cfg_attr(target_arch = "riscv64", allow(dead_code))] // There are none.
pub fn nmi(pc: u64) {
    let this = cpu::this();
    let nested = this.in_nmi.swap(true, Relaxed);
    assert!(!nested, "a non-maskable interrupt in another's handler, at {pc:#x}");
    this.last_pc.store(pc, Relaxed);
    this.counters.nmis.add(1);
    if let Some(handler) = ON_NMI.get() {
        handler();
    }
    this.in_nmi.store(false, Relaxed);
}

/// The handler of shootdown interrupts, which is a `fn()`, or null.
static ON_SHOOTDOWN: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the handler of shootdown interrupts, for example the engine's `on_interrupt`, or a test.
pub fn set_on_shootdown(handler: fn()) {
    ON_SHOOTDOWN.store(handler as *mut (), Ordering::Release);
}

/// Serves a shootdown interrupt.
fn on_shootdown() {
    let serving = &cpu::this().serving;
    serving.store(true, Ordering::Relaxed);
    serve();
    serving.store(false, Ordering::Relaxed);
}

fn serve() {
    let handler = ON_SHOOTDOWN.load(Ordering::Acquire);
    if !handler.is_null() {
        // SAFETY: only `set_on_shootdown` writes the word, and it writes a `fn()`.
        let handler: fn() = unsafe { core::mem::transmute(handler) };
        handler();
    }
}
