//! Turns a wait without end into a report.
//!
//! Every loop in which one CPU waits for another calls [`relax`]. It counts turns, and every so
//! many turns it looks at the clock; a CPU that has done nothing but wait for longer than the limit
//! reports itself and the state of all CPUs, asks the others for their state by a non-maskable
//! interrupt, and ends the run. Anything that is progress ([`progress`]) starts
//! the wait anew; what a CPU does in interrupts while it waits is not progress of its own.
//!
//! It does not see a machine in which every CPU is halted: the program that started the kernel has
//! a time limit for that.

use crate::cpu;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Limit in nanoseconds.
static LIMIT: AtomicU64 = AtomicU64::new(10_000_000_000);
/// Only one CPU reports.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// Turns between looks at the clock: few, because where an emulator runs all CPUs on one thread of
/// its host, a turn can take as long as the slices of all others.
const TURNS: u32 = 16;

/// Sets how long a CPU may wait.
pub fn set_limit_ms(limit: u64) {
    LIMIT.store(limit.saturating_mul(1_000_000), Relaxed);
}

/// One turn of a loop that waits for another CPU.
#[inline]
pub fn relax() {
    quell_arch::relax();
    let this = cpu::this();
    let turns = this.waiting_turns.load(Relaxed).wrapping_add(1);
    this.waiting_turns.store(turns, Relaxed);
    if turns.is_multiple_of(TURNS) {
        look(this);
    }
}

#[cold]
fn look(this: &cpu::Cpu) {
    let now = crate::arch::cpu::nanoseconds().max(1);
    let since = this.waiting_since.load(Relaxed);
    if since == 0 {
        this.waiting_since.store(now, Relaxed);
    } else if now.saturating_sub(since) > LIMIT.load(Relaxed) {
        if REPORTING.swap(true, Relaxed) {
            // Another CPU reports; it ends the run.
            this.waiting_since.store(0, Relaxed);
            return;
        }
        this.set_doing(cpu::Doing::Waiting);
        crate::report::watchdog(crate::arch::cpu::index(), (now - since) / 1_000_000);
        interrogate_others();
        dump_cpus();
        crate::report::exit(4);
    }
}

/// Says that the CPU does something else than wait; in an interrupt's handler that says nothing.
#[inline]
pub fn progress() {
    let this = cpu::this();
    if this.serving.load(Relaxed) || this.in_nmi.load(Relaxed) {
        return;
    }
    this.waiting_turns.store(0, Relaxed);
    this.waiting_since.store(0, Relaxed);
}

/// Makes the other CPUs note where they are, interrupts masked or not, and gives them a moment.
fn interrogate_others() {
    let me = crate::arch::cpu::index();
    for other in (0..cpu::count()).filter(|&other| other != me) {
        crate::arch::interrupts::nmi(other);
    }
    crate::arch::cpu::wait_for(10_000_000, || false);
}

/// Writes the state of every CPU, as far as memory tells it.
pub fn dump_cpus() {
    for index in 0..cpu::count() {
        let cpu = cpu::cpu(index);
        let pc = cpu.last_pc.load(Relaxed);
        crate::report::state(index, cpu.doing_name(), pc, &cpu.counters.read());
    }
}
