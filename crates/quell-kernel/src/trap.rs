//! Faults and interrupts, after the architecture has taken them apart.

use crate::{cpu, machine, watchdog};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A page fault, the same on every architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address.
    pub address: u64,
    /// A store (or an atomic operation that stores).
    pub write: bool,
    /// From user mode.
    pub user: bool,
    /// There was a translation, and it did not allow the access.
    pub present: bool,
    /// An instruction fetch.
    pub fetch: bool,
}

/// Tries to make a fault's access possible; false if it is an error.
pub type FaultHandler = fn(&Fault) -> bool;

static HANDLER: spin::Once<FaultHandler> = spin::Once::new();

/// Sets what handles faults on user addresses, from user mode and from the kernel's accessors.
#[allow(dead_code)]
pub fn on_fault(handler: FaultHandler) {
    HANDLER.call_once(|| handler);
}

/// Handles a fault on a user address.
pub fn fault(fault: &Fault) -> bool {
    let counters = &cpu::this().counters;
    if fault.user {
        &counters.user_faults
    } else {
        &counters.kernel_faults
    }
    .add(1);
    watchdog::progress();
    HANDLER.get().is_some_and(|handler| handler(fault))
}

/// What an interrupt asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Serve the engine's requests.
    Shootdown,
    /// Look at the threads again.
    Wake,
    /// A timer tick.
    Timer,
}

/// After how many nanoseconds a timer tick is followed by the next; 0 for never.
static TICK: AtomicU64 = AtomicU64::new(0);

/// Starts timer ticks on this CPU, or with 0 ends them everywhere after the next one.
pub fn set_tick(nanoseconds: u64) {
    TICK.store(nanoseconds, Relaxed);
    if nanoseconds != 0 {
        crate::arch::interrupts::set_timer(nanoseconds);
    }
}

/// Handles an interrupt that came from `pc`, with interrupts masked, after it was acknowledged.
pub fn interrupt(interrupt: Interrupt, pc: u64) {
    let this = cpu::this();
    this.last_pc.store(pc, Relaxed);
    match interrupt {
        Interrupt::Shootdown => {
            let counters = &this.counters;
            counters.shootdowns_taken.add(1);
            let before = counters.invalidations();
            machine::on_shootdown();
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

/// Sets what non-maskable interrupts do besides counting; it must take no lock.
pub fn on_nmi(handler: fn()) {
    ON_NMI.call_once(|| handler);
}

/// Handles a non-maskable interrupt: takes no lock.
///
/// # Panics
/// If it interrupted the handler of another, whose way back is then lost.
pub fn nmi(pc: u64) {
    let this = cpu::this();
    let nested = this.in_nmi.swap(true, Relaxed);
    assert!(
        !nested,
        "a non-maskable interrupt in another's handler, at {pc:#x}"
    );
    this.last_pc.store(pc, Relaxed);
    this.counters.nmis.add(1);
    if let Some(handler) = ON_NMI.get() {
        handler();
    }
    this.in_nmi.store(false, Relaxed);
}
