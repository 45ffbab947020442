//! Handles traps from kernel mode and from user mode, after the architecture has decoded them.

use crate::arch::traps::{Context, TrapFrame};
use crate::cpu::{self, CpuActivity};
use crate::{accessors, arch, watchdog};
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, Ordering::Relaxed};

/// A page fault, the same on every architecture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address.
    pub address: u64,
    /// The access was a store, or an atomic operation that stores.
    pub write: bool,
    /// The fault came from user mode.
    pub user: bool,
    /// There was a translation, but it didn't allow the access.
    pub present: bool,
    /// The access was an instruction fetch.
    pub fetch: bool,
}

/// The purpose of an interrupt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Serve the engine's requests.
    Shootdown,
    /// Check the threads again.
    Wake,
    /// A timer tick.
    Timer,
}

/// The reason for leaving user mode.
#[derive(Clone, Copy, Debug)]
pub enum Exit {
    /// A system call, with its number and six operands.
    Call([u64; 7]),
    /// A page fault.
    Fault(Fault),
    /// An interrupt, which we've already handled.
    Interrupt,
}

/// The cause of a trap.
pub enum Cause {
    /// An interrupt, which was acknowledged.
    Interrupt(Interrupt),
    /// A page fault.
    Fault(Fault),
    /// A system call.
    Call,
    /// Nothing is left to handle.
    Nothing,
    /// Anything else: the kernel or the program is broken.
    Unexpected,
}

unsafe extern "C" {
    static probe_start: u8;
    static probe_end: u8;
    static probe_failed: u8;
}

/// Handles a trap from kernel mode.
pub fn from_kernel(frame: &mut TrapFrame, cause: Cause) {
    match cause {
        Cause::Interrupt(interrupt) => self::interrupt(interrupt, frame.pc),
        Cause::Fault(fault) => {
            // Only the accessors to user memory may fault.
            let (start, end) = (&raw const probe_start as u64, &raw const probe_end as u64);
            if !(start..end).contains(&frame.pc) || !accessors::may_fault(fault.address) {
                panic!("page fault in the kernel: {fault:x?} {frame:#x?}");
            }
            note_fault(&fault);
            frame.pc = &raw const probe_failed as u64;
        }
        Cause::Nothing => {}
        Cause::Call | Cause::Unexpected => panic!("exception in the kernel: {frame:#x?}"),
    }
}

/// User mode as a function call.
impl Context {
    /// Runs user mode until it's left. Interrupts are on afterwards.
    ///
    /// # Panics
    /// On an exception that isn't a page fault, because the user program is broken.
    pub fn run(&mut self) -> Exit {
        let this = cpu::this();
        loop {
            arch::cpu::mask_interrupts();
            this.set_doing(CpuActivity::User);
            // SAFETY: interrupts are masked until user mode runs.
            unsafe { self.enter() };
            this.set_doing(CpuActivity::Kernel);
            match self.cause() {
                Cause::Interrupt(interrupt) => {
                    self::interrupt(interrupt, self.frame.pc);
                    // A shootdown changes nothing that the caller checks.
                    if interrupt != Interrupt::Shootdown {
                        arch::cpu::restore_interrupts(true);
                        return Exit::Interrupt;
                    }
                }
                Cause::Fault(fault) => {
                    arch::cpu::restore_interrupts(true);
                    return Exit::Fault(fault);
                }
                Cause::Call => {
                    arch::cpu::restore_interrupts(true);
                    this.counters.syscalls.add(1);
                    return Exit::Call(self.call());
                }
                Cause::Nothing => {}
                Cause::Unexpected => panic!("exception in user mode: {:#x?}", self.frame),
            }
        }
    }
}

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
        arch::interrupts::set_timer(nanoseconds);
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
                arch::interrupts::set_timer(tick);
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
    let handler = ON_SHOOTDOWN.load(Ordering::Acquire);
    if !handler.is_null() {
        let serving = &cpu::this().serving;
        serving.store(true, Ordering::Relaxed);
        // SAFETY: only `set_on_shootdown` writes the word, and it writes a `fn()`.
        let handler: fn() = unsafe { core::mem::transmute(handler) };
        handler();
        serving.store(false, Ordering::Relaxed);
    }
}
