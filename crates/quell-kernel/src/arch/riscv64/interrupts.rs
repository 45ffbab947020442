//! Interrupts between CPUs and the timer, both through the firmware (SBI).
//!
//! A CPU has one software interrupt, which says nothing of why it was sent. So the sender leaves the reason in a word of
//! the target before it asks the firmware, and the target takes the word *after* it has cleared the pending
//! bit: a reason that is stored later comes with a pending bit of its own. The other way round, an
//! interrupt that came between the two would be lost.
//!
//! There are no non-maskable interrupts on this architecture.

use crate::cause::Interrupt;
use core::sync::atomic::{AtomicU8, Ordering};
use quell::CpuSet;
use quell_arch::riscv64::tlb::fence_devices;
use riscv::register::{sie, sip};

/// What sends a CPU a non-maskable interrupt: nothing on this architecture.
pub const SEND_NMI: Option<fn(usize)> = None;

/// The numbers of interrupts, as scause has them.
const SOFTWARE: u64 = 1;
const TIMER: u64 = 5;

/// Reasons of a software interrupt.
const SHOOTDOWN: u8 = 1 << 0;
const WAKE: u8 = 1 << 1;

/// Why each CPU was sent its software interrupt.
static ASKED: [AtomicU8; crate::cpu::MAX] = [const { AtomicU8::new(0) }; crate::cpu::MAX];

/// Lets interrupts ask for this CPU, `hart` by the firmware's name.
///
/// # Safety
/// `index` is this CPU's number, and interrupts are masked.
pub unsafe fn init_cpu(index: usize, hart: u64) {
    let cpu = crate::cpu::cpu(index);
    cpu.hardware_id.store(hart, Ordering::Relaxed);
    disarm();
    // SAFETY: interrupts are masked, and the vectors are set.
    unsafe {
        sie::set_ssoft();
        sie::set_stimer();
    }
}

fn send(to: usize, why: u8) {
    ASKED[to].fetch_or(why, Ordering::SeqCst);
    // Earlier stores are visible to the target before the interrupt is.
    fence_devices();
    let hart = crate::cpu::cpu(to).hardware_id.load(Ordering::Relaxed);
    let target = sbi_rt::HartMask::from_mask_base(1, hart as usize);
    let sent = sbi_rt::send_ipi(target);
    assert!(
        sent.is_ok(),
        "the firmware interrupts no hart {hart}: {sent:?}"
    );
}

/// Interrupts CPUs to serve the engine's requests.
pub fn shoot(targets: &CpuSet) {
    for target in targets.iter() {
        send(target.index(), SHOOTDOWN);
    }
}

/// Interrupts a CPU so that it leaves a halt.
pub fn wake(to: usize) {
    send(to, WAKE);
}

/// Sets this CPU's own software interrupt pending, without a reason.
pub fn pend() {
    // SAFETY: a pending interrupt without a reason is served as none.
    unsafe { sip::set_ssoft() };
}

/// Takes [`pend`] back, unless somebody has a reason.
pub fn unpend() {
    clear();
    if ASKED[super::cpu::index()].load(Ordering::SeqCst) != 0 {
        pend();
    }
}

/// Clears the pending bit; reasons that are looked at after this are not older.
fn clear() {
    // SAFETY: the bit is this CPU's own; the caller looks for reasons.
    unsafe { sip::clear_ssoft() };
    fence_devices();
}

/// Asks for one timer interrupt on this CPU after about a time.
pub fn set_timer(nanoseconds: u64) {
    let ticks = super::cpu::ticks_per_ms() * nanoseconds / 1_000_000;
    sbi_rt::set_timer(super::cpu::ticks() + ticks);
}

/// Takes a timer interrupt back, pending or asked for.
fn disarm() {
    sbi_rt::set_timer(u64::MAX);
}

/// Acknowledges the interrupt that scause named with `number`, and says what it asks for; `None` if it is spurious.
///
/// # Panics
/// If it is one that the kernel does not let come.
pub fn acknowledge(number: u64) -> Option<Interrupt> {
    match number {
        SOFTWARE => {
            clear();
            let asked = &ASKED[super::cpu::index()];
            let why = asked.swap(0, Ordering::SeqCst);
            if why == SHOOTDOWN | WAKE {
                // One after the other.
                asked.fetch_or(WAKE, Ordering::SeqCst);
                pend();
            }
            match why {
                0 => None,
                WAKE => Some(Interrupt::Wake),
                _ => Some(Interrupt::Shootdown),
            }
        }
        TIMER => {
            // It stays pending until it is disarmed.
            disarm();
            Some(Interrupt::Timer)
        }
        other => panic!("unexpected interrupt {other}"),
    }
}
