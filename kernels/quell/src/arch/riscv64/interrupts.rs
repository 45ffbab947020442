//! Interrupts between CPUs and the timer, both through the firmware (SBI).
//!
//! There are no non-maskable interrupts on this architecture.

use super::software::{self, SHOOTDOWN, WAKE};
use crate::trap::Interrupt;
use core::sync::atomic::Ordering::Relaxed;
use quell::CpuSet;
use riscv::register::sie;

/// Sends a CPU a non-maskable interrupt: impossible on this architecture.
pub const SEND_NMI: Option<fn(usize)> = None;

/// The numbers of interrupts, as in scause.
const SOFTWARE: u64 = 1;
const TIMER: u64 = 5;

/// Enables interrupts for this CPU, `hart` in the firmware's numbering.
///
/// # Safety
/// `index` is this CPU's number, and interrupts are masked.
pub unsafe fn init_cpu(index: usize, hart: u64) {
    let cpu = crate::cpu::cpu(index);
    cpu.hardware_id.store(hart, Relaxed);
    disarm();
    // SAFETY: interrupts are masked, and the vectors are set.
    unsafe {
        sie::set_ssoft();
        sie::set_stimer();
    }
}

fn send(to: usize, why: u8) {
    software::ask(to, why);
    let hart = crate::cpu::cpu(to).hardware_id.load(Relaxed);
    let target = sbi_rt::HartMask::from_mask_base(1, hart as usize);
    let sent = sbi_rt::send_ipi(target);
    assert!(sent.is_ok(), "the firmware interrupts no hart {hart}: {sent:?}");
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

/// Requests one timer interrupt on this CPU after about this time.
pub fn set_timer(nanoseconds: u64) {
    let ticks = super::cpu::ticks_per_ms() * nanoseconds / 1_000_000;
    sbi_rt::set_timer(super::cpu::ticks() + ticks);
}

/// Cancels a timer interrupt, pending or requested.
fn disarm() {
    sbi_rt::set_timer(u64::MAX);
}

/// Acknowledges the interrupt with this `number` in scause. Returns its purpose, or `None` if it's spurious.
///
/// # Panics
/// If the kernel hasn't enabled that interrupt.
pub fn acknowledge(number: u64) -> Option<Interrupt> {
    match number {
        SOFTWARE => match software::take(super::cpu::index()) {
            SHOOTDOWN => Some(Interrupt::Shootdown),
            WAKE => Some(Interrupt::Wake),
            _ => None,
        },
        TIMER => {
            // The interrupt stays pending until the timer is disarmed.
            disarm();
            Some(Interrupt::Timer)
        }
        other => panic!("unexpected interrupt {other}"),
    }
}
