//! Exceptions and interrupts: the table, and the code that handles those from kernel mode.

use super::cpu::{DOUBLE_FAULT_STACK, KERNEL_CODE, NMI_STACK};
use super::interrupts;
use crate::cause::Fault;
use crate::mistakes::{self, Mistake};
use crate::{accessors, trap};

core::arch::global_asm!(include_str!("traps.s"), options(att_syntax));

unsafe extern "C" {
    static trap_stubs: [[u8; 16]; 256];
    static probe_start: u8;
    static probe_end: u8;
    static probe_failed: u8;
}

/// The registers at a trap, as `traps.s` pushes them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    pub(super) r15: u64,
    pub(super) r14: u64,
    pub(super) r13: u64,
    pub(super) r12: u64,
    pub(super) r11: u64,
    pub(super) r10: u64,
    pub(super) r9: u64,
    pub(super) r8: u64,
    pub(super) rbp: u64,
    pub(super) rdi: u64,
    pub(super) rsi: u64,
    pub(super) rdx: u64,
    pub(super) rcx: u64,
    pub(super) rbx: u64,
    pub(super) rax: u64,
    pub(super) vector: u64,
    pub(super) error: u64,
    pub(super) rip: u64,
    pub(super) cs: u64,
    pub(super) rflags: u64,
    pub(super) rsp: u64,
    pub(super) ss: u64,
}

/// The vector of a non-maskable interrupt.
pub const NMI: u64 = 2;
const DOUBLE_FAULT: u64 = 8;
/// The vector of a page fault.
pub const PAGE_FAULT: u64 = 14;
/// The vector of a system call.
pub const SYSTEM_CALL: u64 = 0x80;
/// The first vector that isn't an exception.
pub const FIRST_INTERRUPT: u64 = 32;

/// Fills the table, which all CPUs share, and loads it.
pub fn init_cpu() {
    static TABLE: spin::Once<[[u64; 2]; 256]> = spin::Once::new();
    let table = TABLE.call_once(|| {
        core::array::from_fn(|vector| {
            // SAFETY: we only take the address of the stub.
            let stub = unsafe { &raw const trap_stubs[vector] } as u64;
            let stack = match vector as u64 {
                NMI => NMI_STACK + 1,
                DOUBLE_FAULT => DOUBLE_FAULT_STACK + 1,
                _ => 0,
            };
            // The gate is present and an interrupt gate. User mode may use the gate of system calls.
            let kind: u64 = if vector as u64 == SYSTEM_CALL { 0xee } else { 0x8e };
            [
                stub & 0xffff
                    | u64::from(KERNEL_CODE) << 16
                    | u64::from(stack) << 32
                    | kind << 40
                    | (stub >> 16 & 0xffff) << 48,
                stub >> 32,
            ]
        })
    });
    let pointer = x86_64::structures::DescriptorTablePointer {
        limit: (size_of_val(table) - 1) as u16,
        base: x86_64::VirtAddr::from_ptr(table),
    };
    // SAFETY: the table is never freed, and its gates lead to the stubs.
    unsafe { x86_64::instructions::tables::lidt(&pointer) };
}

/// Returns the fault that a page-fault exception reports.
pub fn fault(error: u64) -> Fault {
    Fault {
        address: x86_64::registers::control::Cr2::read_raw(),
        present: error & 1 != 0,
        write: error & 2 != 0,
        user: error & 4 != 0,
        fetch: error & 16 != 0,
    }
}

/// Handles a trap from kernel mode, or a non-maskable interrupt from anywhere. Returns whether we must return without
/// `iretq`. In the handler of a non-maskable interrupt, the processor holds back the next one until any `iretq`, and
/// the handler may fault.
#[unsafe(no_mangle)]
extern "C" fn trap_kernel(frame: &mut TrapFrame) -> bool {
    match frame.vector {
        NMI => {
            // The interrupt may arrive between a fault and that fault's handler, and `trap::nmi` may fault, too. So we
            // save the address of the first fault.
            let address = x86_64::registers::control::Cr2::read_raw();
            trap::nmi(frame.rip);
            frame.rip = super::cpu::after_halt(frame.rip).unwrap_or(frame.rip);
            // SAFETY: this restores the register's value, which only the handlers read.
            unsafe {
                core::arch::asm!("mov cr2, {}", in(reg) address, options(nostack, preserves_flags));
            }
        }
        PAGE_FAULT => {
            page_fault(frame);
            return !mistakes::makes(Mistake::NmiReturn);
        }
        FIRST_INTERRUPT.. if frame.vector != SYSTEM_CALL => {
            if let Some(interrupt) = interrupts::acknowledge(frame.vector) {
                trap::interrupt(interrupt, frame.rip);
            }
        }
        _ => panic!("exception {} in the kernel: {frame:#x?}", frame.vector),
    }
    false
}

/// Handles a page fault of the kernel. Only its accessors to user memory may fault.
fn page_fault(frame: &mut TrapFrame) {
    let fault = fault(frame.error);
    let (start, end) = (&raw const probe_start as u64, &raw const probe_end as u64);
    if !(start..end).contains(&frame.rip) || !accessors::may_fault(fault.address) {
        panic!("page fault in the kernel: {fault:x?} {frame:#x?}");
    }
    trap::note_fault(&fault);
    frame.rip = &raw const probe_failed as u64;
}
