//! Exceptions and interrupts: the table, their causes, and user mode.

use super::cpu::{self, DOUBLE_FAULT_STACK, KERNEL_CODE, NMI_STACK, USER_CODE, USER_DATA};
use super::interrupts;
use crate::mistakes::{self, Mistake};
use crate::trap::{self, Cause, Fault};
use x86_64::VirtAddr;

core::arch::global_asm!(include_str!("traps.s"), options(att_syntax));

unsafe extern "C" {
    static trap_stubs: [[u8; 16]; 256];
    unsafe fn user_enter(context: *mut Context);
}

/// The registers at a trap, as `traps.s` pushes them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    r15: u64,
    r14: u64,
    r13: u64,
    r12: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rbp: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rbx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    pub pc: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Vectors.
const NMI: u64 = 2;
const DOUBLE_FAULT: u64 = 8;
const PAGE_FAULT: u64 = 14;
const SYSTEM_CALL: u64 = 0x80;
/// The first vector that isn't an exception.
const FIRST_INTERRUPT: u64 = 32;

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
        base: VirtAddr::from_ptr(table),
    };
    // SAFETY: the table is never freed, and its gates lead to the stubs.
    unsafe { x86_64::instructions::tables::lidt(&pointer) };
}

/// Returns the cause of a trap.
fn cause(frame: &TrapFrame) -> Cause {
    match frame.vector {
        SYSTEM_CALL => Cause::Call,
        PAGE_FAULT => Cause::Fault(Fault {
            address: x86_64::registers::control::Cr2::read_raw(),
            present: frame.error & 1 != 0,
            write: frame.error & 2 != 0,
            user: frame.error & 4 != 0,
            fetch: frame.error & 16 != 0,
        }),
        vector @ FIRST_INTERRUPT.. => {
            interrupts::acknowledge(vector).map_or(Cause::Nothing, Cause::Interrupt)
        }
        ..FIRST_INTERRUPT => Cause::Unexpected,
    }
}

/// Handles a trap from kernel mode, or a non-maskable interrupt from anywhere. Returns whether we must return without
/// `iretq`. In the handler of a non-maskable interrupt, the processor holds back the next one until any `iretq`, and
/// the handler may fault.
#[unsafe(no_mangle)]
extern "C" fn trap_kernel(frame: &mut TrapFrame) -> bool {
    if frame.vector != NMI {
        trap::from_kernel(frame, cause(frame));
        return frame.vector == PAGE_FAULT && !mistakes::makes(Mistake::NmiReturn);
    }
    // The interrupt may arrive between a fault and that fault's handler, and `trap::nmi` may fault, too. So we save the
    // address of the first fault.
    let address = x86_64::registers::control::Cr2::read_raw();
    trap::nmi(frame.pc);
    frame.pc = cpu::after_halt(frame.pc).unwrap_or(frame.pc);
    // SAFETY: this restores the register's value, which only the handlers read.
    unsafe {
        core::arch::asm!("mov cr2, {}", in(reg) address, options(nostack, preserves_flags));
    }
    false
}

/// The registers of user mode on one thread.
///
/// The processor aligns the stack pointer that it takes from the task state to 16 bytes, so the end of the frame must
/// have that alignment.
#[repr(C, align(16))]
pub struct Context {
    pub frame: TrapFrame,
    /// The kernel's stack pointer while user mode runs; written by `user_enter`.
    kernel_stack: u64,
    _aligned: u64,
}
const _: () = assert!(size_of::<TrapFrame>().is_multiple_of(16));

impl Context {
    /// Creates a context that begins at `entry` with a stack and three arguments.
    pub fn new(entry: u64, stack: u64, arguments: [u64; 3]) -> Self {
        let frame = TrapFrame {
            pc: entry,
            cs: USER_CODE.into(),
            // This is the interrupt flag, and the bit that is always 1.
            rflags: 0x202,
            // The alignment is the one after a call.
            rsp: stack - 8,
            ss: USER_DATA.into(),
            rdi: arguments[0],
            rsi: arguments[1],
            rdx: arguments[2],
            ..TrapFrame::default()
        };
        Context { frame, kernel_stack: 0, _aligned: 0 }
    }

    /// Enters user mode, and returns when it's left.
    ///
    /// # Safety
    /// Interrupts are masked.
    pub unsafe fn enter(&mut self) {
        let top = (&raw mut self.kernel_stack) as u64;
        // SAFETY: interrupts are masked, so nothing uses the task state until user mode runs. The frame contains user
        // selectors, and the entries save it at its place.
        unsafe {
            (*cpu::local()).tss.privilege_stack_table[0] = VirtAddr::new(top);
            user_enter(self);
        }
    }

    /// Returns the reason for leaving user mode.
    pub fn cause(&mut self) -> Cause {
        cause(&self.frame)
    }

    /// Returns the number and the operands of a system call.
    pub fn call(&self) -> [u64; 7] {
        let f = &self.frame;
        [f.rax, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9]
    }

    /// Sets a system call's result: a value and an error number (0 for success).
    pub fn answer(&mut self, value: u64, error: u64) {
        self.frame.rax = value;
        self.frame.rdx = error;
    }

    /// Skips the access that faulted. Passes `error` to it in the register that the program's accesses reserve for that
    /// (`rcx`). Such an access is an instruction of three bytes.
    pub fn refuse_access(&mut self, error: u64) {
        self.frame.pc += 3;
        self.frame.rcx = error;
    }
}
