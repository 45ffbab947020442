//! Exceptions and interrupts: the vectors, and the code that handles those from kernel mode.

use super::interrupts;
use crate::cause::Fault;
use crate::{accessors, trap};
use aarch64_cpu::registers::{VBAR_EL1, Writeable};

core::arch::global_asm!(include_str!("traps.s"));

unsafe extern "C" {
    static trap_vectors: u8;
    static probe_start: u8;
    static probe_end: u8;
    static probe_failed: u8;
}

/// The registers at a trap, as `traps.s` saves them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    pub(super) x: [u64; 31],
    pub(super) sp: u64,
    pub(super) pc: u64,
    pub(super) status: u64,
    pub(super) syndrome: u64,
    pub(super) address: u64,
}

/// The kind of a synchronous exception, as the vectors pass it.
pub const EXCEPTION: u64 = 0;
/// The kind of an interrupt.
pub const INTERRUPT: u64 = 1;
/// The kind of a non-maskable interrupt.
pub const NMI: u64 = 3;

/// Exception class of a system call.
pub const SYSTEM_CALL: u64 = 0x15;
const FETCH_FROM_USER: u64 = 0x20;
const FETCH_FROM_KERNEL: u64 = 0x21;
const ACCESS_FROM_USER: u64 = 0x24;
const ACCESS_FROM_KERNEL: u64 = 0x25;

/// Sets this CPU's vectors.
pub fn init_cpu() {
    VBAR_EL1.set(&raw const trap_vectors as u64);
    aarch64_cpu::asm::barrier::isb(aarch64_cpu::asm::barrier::SY);
}

/// Returns the exception class.
pub fn class(syndrome: u64) -> u64 {
    syndrome >> 26 & 0x3f
}

/// Returns the page fault that an exception reports, or `None` for other exceptions.
pub fn fault(frame: &TrapFrame) -> Option<Fault> {
    let class = class(frame.syndrome);
    let fetch = matches!(class, FETCH_FROM_USER | FETCH_FROM_KERNEL);
    if !fetch && !matches!(class, ACCESS_FROM_USER | ACCESS_FROM_KERNEL) {
        return None;
    }
    let present = match frame.syndrome >> 2 & 0xf {
        // A translation is missing at some level.
        1 => false,
        // The access flag is clear, or a permission is missing.
        2 | 3 => true,
        _ => return None,
    };
    Some(Fault {
        address: frame.address,
        present,
        // Cache maintenance reports itself as a write, but it isn't one.
        write: !fetch && frame.syndrome >> 6 & 1 != 0 && frame.syndrome >> 8 & 1 == 0,
        user: matches!(class, FETCH_FROM_USER | ACCESS_FROM_USER),
        fetch,
    })
}

/// Handles a trap from kernel mode.
#[unsafe(no_mangle)]
extern "C" fn trap_kernel(frame: &mut TrapFrame, kind: u64) {
    match kind {
        INTERRUPT => {
            if let Some(interrupt) = interrupts::acknowledge() {
                trap::interrupt(interrupt, frame.pc);
            }
        }
        NMI => {
            if interrupts::acknowledge_nmi() {
                trap::nmi(frame.pc);
            }
        }
        EXCEPTION => match fault(frame) {
            Some(fault) => page_fault(frame, fault),
            None => panic!("exception in the kernel: {frame:#x?}"),
        },
        _ => panic!("unexpected exception: {frame:#x?}"),
    }
}

/// Handles a page fault of the kernel. Only its accessors to user memory may fault.
fn page_fault(frame: &mut TrapFrame, fault: Fault) {
    let (start, end) = (&raw const probe_start as u64, &raw const probe_end as u64);
    if !(start..end).contains(&frame.pc) || !accessors::may_fault(fault.address) {
        panic!("page fault in the kernel: {fault:x?} {frame:#x?}");
    }
    trap::note_fault(&fault);
    frame.pc = &raw const probe_failed as u64;
}
