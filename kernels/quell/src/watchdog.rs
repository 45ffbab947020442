//! Reports waits that never end.
//!
//! Every loop in which one CPU waits for another calls [`relax`]. Any progress ([`progress`]) restarts the wait. But a
//! CPU's work in interrupts while it waits isn't progress of its own.
//!
//! A clock alone can't distinguish a CPU that waits for ever from one whose target gets no time. For example, an
//! emulator on a busy host may pause a CPU for any time while the machine's clock advances. So a wait has [`ROUNDS`]
//! rounds. In each, the waiting CPU sends all others a non-maskable interrupt, which they take in user code, with
//! interrupts masked and while halted. The round ends when all of them have taken theirs and its share of the limit has
//! passed. If a CPU gets no time, it takes no interrupt, so the round waits for it. After the last round, every CPU has
//! run [`ROUNDS`] times and the wait has outlasted the limit. The CPU then reports itself and the state of all, and
//! ends the run.
//!
//! Without non-maskable interrupts, a round just ends when its share of the limit has passed. Then we can't distinguish
//! a CPU without host time from one that hangs. An emulator that runs all CPUs on one thread is an exception. There,
//! each turn of the waiting loop lets all others run ([`crate::arch::cpu::relax`]), and a round takes several.
//!
//! We can't detect two failures: that every CPU has halted, and that a CPU takes no non-maskable interrupts. The
//! program that started the kernel has a limit for those.

use crate::{arch, cpu, report};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The limit in nanoseconds.
static LIMIT: AtomicU64 = AtomicU64::new(10_000_000_000);
/// Whether a CPU already reports. Only one does.
static REPORTING: AtomicBool = AtomicBool::new(false);

/// The number of turns between readings of the clock. It's small, because if an emulator runs all CPUs on one thread of
/// its host, a turn can take as long as the slices of all others.
const TURNS: u32 = 16;
/// The rounds of a wait. Each is long enough for a CPU with host time to finish its step. At the default limit, it's
/// half a second.
const ROUNDS: u32 = 20;

/// Sets the time that a CPU may wait while all others run.
pub fn set_limit_ms(limit: u64) {
    LIMIT.store(limit.saturating_mul(1_000_000), Relaxed);
}

/// Performs one turn of a loop that waits for another CPU.
#[inline]
pub fn relax() {
    arch::cpu::relax();
    let this = cpu::this();
    let turns = this.waiting.turns.load(Relaxed).wrapping_add(1);
    this.waiting.turns.store(turns, Relaxed);
    if turns.is_multiple_of(TURNS) {
        look(this);
    }
}

#[cold]
fn look(this: &cpu::Cpu) {
    let waiting = &this.waiting;
    let now = crate::clock::nanoseconds().max(1);
    let round = waiting.round.load(Relaxed);
    if round == 0 {
        waiting.since.store(now, Relaxed);
    } else {
        let begun = waiting.round_begun.load(Relaxed);
        let over = now.saturating_sub(begun) > LIMIT.load(Relaxed) / u64::from(ROUNDS);
        if !over || !all_have_answered(waiting) {
            return;
        }
        if round == ROUNDS {
            give_up(this, now);
            return;
        }
    }
    waiting.round.store(round + 1, Relaxed);
    waiting.round_begun.store(now, Relaxed);
    // The first round sends no interrupts, because most waits end in it.
    ask_others(waiting, round > 0);
}

/// Records the numbers of non-maskable interrupts that the other CPUs have taken, and sends them one more if `ask`.
fn ask_others(waiting: &cpu::WaitState, ask: bool) {
    let send = arch::interrupts::SEND_NMI.filter(|_| ask);
    waiting.asked.store(send.is_some(), Relaxed);
    let Some(send) = send else { return };
    let me = arch::cpu::index();
    for other in (0..cpu::count()).filter(|&other| other != me) {
        waiting.nmis[other].store(cpu::cpu(other).counters.nmis.get(), Relaxed);
        send(other);
    }
}

/// Returns whether every other CPU has taken a non-maskable interrupt, this CPU's or another's, in this round.
fn all_have_answered(waiting: &cpu::WaitState) -> bool {
    let me = arch::cpu::index();
    let answered =
        |other: usize| cpu::cpu(other).counters.nmis.get() != waiting.nmis[other].load(Relaxed);
    !waiting.asked.load(Relaxed) || (0..cpu::count()).all(|other| other == me || answered(other))
}

/// Reports that this CPU has waited in vain, and ends the run.
fn give_up(this: &cpu::Cpu, now: u64) {
    if REPORTING.swap(true, Relaxed) {
        // Another CPU already reports, and ends the run.
        this.waiting.round.store(0, Relaxed);
        return;
    }
    this.set_doing(cpu::CpuActivity::Waiting);
    let waited = now.saturating_sub(this.waiting.since.load(Relaxed));
    report::waited_in_vain(waited / 1_000_000);
}

/// Restarts the wait, because the CPU has made progress. It has no effect in an interrupt handler.
#[inline]
pub fn progress() {
    let this = cpu::this();
    if this.serving.load(Relaxed) || this.in_nmi.load(Relaxed) {
        return;
    }
    this.waiting.turns.store(0, Relaxed);
    this.waiting.round.store(0, Relaxed);
}
