//! Exceptions and interrupts: the vector, their causes, and user mode.

use super::{cpu, interrupts, paging};
use crate::layout;
use crate::trap::{self, Cause, Fault};
use quell::Page;
use riscv::register::sstatus;
use riscv::register::stvec::{self, Stvec, TrapMode};

core::arch::global_asm!(include_str!("traps.s"));

unsafe extern "C" {
    static trap_vector: u8;
    unsafe fn user_enter(context: *mut Context);
}

/// The registers at a trap, as `traps.s` saves them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    /// The registers x1 to x31.
    x: [u64; 31],
    pub pc: u64,
    status: u64,
    cause: u64,
    value: u64,
    unused: u64,
}

/// A bit of the status: the trap came from kernel mode.
const FROM_KERNEL: u64 = 1 << 8;
/// A bit of the status: interrupts were on.
const INTERRUPTS_WERE_ON: u64 = 1 << 5;

/// The exception of a system call.
const SYSTEM_CALL: u64 = 8;
const FETCH_FAULT: u64 = 12;
const LOAD_FAULT: u64 = 13;
const STORE_FAULT: u64 = 15;

/// Sets this CPU's vector.
pub fn init_cpu() {
    let vector = &raw const trap_vector as usize;
    // SAFETY: this is the vector, which is aligned to four bytes.
    unsafe { stvec::write(Stvec::new(vector, TrapMode::Direct)) };
}

/// Returns the cause of a trap.
///
/// The hardware doesn't report whether there was a translation without the right. We decide that by the present tables.
fn cause(frame: &TrapFrame) -> Cause {
    const INTERRUPT: u64 = 1 << 63;
    if frame.cause & INTERRUPT != 0 {
        let interrupt = interrupts::acknowledge(frame.cause & !INTERRUPT);
        return interrupt.map_or(Cause::Nothing, Cause::Interrupt);
    }
    let (write, fetch) = match frame.cause {
        SYSTEM_CALL => return Cause::Call,
        FETCH_FAULT => (false, true),
        LOAD_FAULT => (false, false),
        STORE_FAULT => (true, false),
        _ => return Cause::Unexpected,
    };
    let translation = paging::translation(frame.value);
    let fault = Fault {
        address: frame.value,
        present: translation.is_some(),
        write,
        user: frame.status & FROM_KERNEL == 0,
        fetch,
    };
    let allowed = translation.is_some_and(|entry| {
        let right = match (write, fetch) {
            (true, _) => entry.writable && entry.dirty,
            (_, true) => entry.executable,
            _ => true,
        };
        // The kernel may access user pages, but not execute them.
        let mode = entry.user == fault.user || !fault.user && !fetch;
        right && mode && entry.accessed
    });
    if allowed {
        // A TLB may cache an absent or refused entry until it's invalidated. Then the access may be retried.
        paging::invalidate_global(Page::containing(fault.address));
        return Cause::Nothing;
    }
    Cause::Fault(fault)
}

/// Handles a trap from kernel mode.
#[unsafe(no_mangle)]
extern "C" fn trap_kernel(frame: &mut TrapFrame) {
    trap::from_kernel(frame, cause(frame));
}

/// The registers of user mode on one thread. While user mode runs, sscratch contains this address.
#[repr(C, align(16))]
pub struct Context {
    pub frame: TrapFrame,
    /// The kernel's stack pointer; written by `user_enter`.
    kernel_stack: u64,
    /// The CPU's number for the return to the kernel; written by `user_enter`.
    cpu: u64,
}
const _: () = assert!(size_of::<TrapFrame>() == 36 * 8);

/// The indices of registers in [`TrapFrame`].
const SP: usize = 1;
const A0: usize = 9;
const A1: usize = 10;
const A3: usize = 12;

impl Context {
    /// Creates a context that begins at `entry` with a stack and three arguments.
    pub fn new(entry: u64, stack: u64, arguments: [u64; 3]) -> Self {
        // User mode with interrupts on. The rest is as in the kernel.
        let status = sstatus::read().bits() as u64 & !FROM_KERNEL | INTERRUPTS_WERE_ON;
        let mut frame = TrapFrame { pc: entry, status, ..TrapFrame::default() };
        frame.x[SP] = stack;
        frame.x[A0..A0 + 3].copy_from_slice(&arguments);
        Context { frame, kernel_stack: 0, cpu: 0 }
    }

    /// Enters user mode, and returns when it's left.
    ///
    /// # Safety
    /// Interrupts are masked.
    pub unsafe fn enter(&mut self) {
        // SAFETY: interrupts are masked until user mode runs. The vector saves the frame at its place.
        unsafe { user_enter(self) };
    }

    /// Returns the reason for leaving user mode. Makes the program's call `RELAX` itself.
    pub fn cause(&mut self) -> Cause {
        let cause = cause(&self.frame);
        if let Cause::Call = cause {
            self.frame.pc += 4;
            if self.frame.x[A0] == layout::RELAX {
                cpu::relax();
                return Cause::Nothing;
            }
        }
        cause
    }

    /// Returns the number and the operands of a system call.
    pub fn call(&self) -> [u64; 7] {
        core::array::from_fn(|index| self.frame.x[A0 + index])
    }

    /// Sets a system call's result: a value and an error number (0 for success).
    pub fn answer(&mut self, value: u64, error: u64) {
        self.frame.x[A0] = value;
        self.frame.x[A1] = error;
    }

    /// Skips the access that faulted. Passes `error` to it in the register that the program's accesses reserve for that
    /// (`a3`).
    pub fn refuse_access(&mut self, error: u64) {
        // The program's accesses aren't compressed instructions.
        self.frame.pc += 4;
        self.frame.x[A3] = error;
    }
}
