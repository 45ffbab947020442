//! A CPU's software interrupt: its pending bit, and the reason for it.
//!
//! The sender stores the reason in a word of the target before it calls the firmware. The target reads the word *after*
//! it has cleared the pending bit, because a reason stored later has its own pending bit. In the other order, we would
//! lose an interrupt that arrives between the two.

use core::sync::atomic::{AtomicU8, Ordering};
use quell_arch::riscv64::tlb::fence_devices;
use riscv::register::sip;

/// A reason: serve the engine's requests.
pub const SHOOTDOWN: u8 = 1 << 0;
/// A reason: leave a halt.
pub const WAKE: u8 = 1 << 1;

/// The reasons for each CPU's software interrupt.
static ASKED: [AtomicU8; crate::cpu::MAX] = [const { AtomicU8::new(0) }; crate::cpu::MAX];

/// Stores a reason for CPU `to`, which the caller interrupts afterwards. Earlier stores are visible to its handler.
pub fn ask(to: usize, why: u8) {
    ASKED[to].fetch_or(why, Ordering::SeqCst);
    fence_devices();
}

/// Makes the software interrupt of this CPU pending, without a reason.
pub fn pend() {
    // SAFETY: the handler ignores a pending interrupt without a reason.
    unsafe { sip::set_ssoft() };
}

/// Reverts [`pend`] on this CPU, `me`, unless there is a reason.
pub fn unpend(me: usize) {
    clear();
    if ASKED[me].load(Ordering::SeqCst) != 0 {
        pend();
    }
}

/// Acknowledges the software interrupt of this CPU, `me`. Returns one of its reasons, or 0 if there is none. If there
/// are more, the interrupt is pending again.
pub fn take(me: usize) -> u8 {
    clear();
    let why = ASKED[me].swap(0, Ordering::SeqCst);
    if why == SHOOTDOWN | WAKE {
        ASKED[me].fetch_or(WAKE, Ordering::SeqCst);
        pend();
        return SHOOTDOWN;
    }
    why
}

/// Clears the pending bit. Reasons read after this aren't older.
fn clear() {
    // SAFETY: the bit is this CPU's own, and the caller checks for reasons.
    unsafe { sip::clear_ssoft() };
    fence_devices();
}
