//! Exceptions and interrupts: the vectors, their causes, and user mode.

use super::{cpu, interrupts};
use crate::trap::{self, Cause, Fault};
use aarch64_cpu::registers::{VBAR_EL1, Writeable};

core::arch::global_asm!(include_str!("traps.s"));

unsafe extern "C" {
    static trap_vectors: u8;
    unsafe fn user_enter(context: *mut Context);
}

/// The registers at a trap, as `traps.s` saves them.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct TrapFrame {
    x: [u64; 31],
    sp: u64,
    pub pc: u64,
    status: u64,
    syndrome: u64,
    address: u64,
}

/// Kinds of exceptions, as the vectors pass them.
const EXCEPTION: u64 = 0;
const INTERRUPT: u64 = 1;
const NMI: u64 = 3;

/// Classes of synchronous exceptions.
const SYSTEM_CALL: u64 = 0x15;
const FETCH_FROM_USER: u64 = 0x20;
const FETCH_FROM_KERNEL: u64 = 0x21;
const ACCESS_FROM_USER: u64 = 0x24;
const ACCESS_FROM_KERNEL: u64 = 0x25;

/// Sets this CPU's vectors.
pub fn init_cpu() {
    VBAR_EL1.set(&raw const trap_vectors as u64);
    aarch64_cpu::asm::barrier::isb(aarch64_cpu::asm::barrier::SY);
}

/// Returns the cause of an exception of this kind. Handles it if it is a non-maskable interrupt.
fn cause(frame: &TrapFrame, kind: u64) -> Cause {
    /// The bits of the status that are 0 in user mode.
    const MODE: u64 = 0xf;
    match kind {
        INTERRUPT => interrupts::acknowledge().map_or(Cause::Nothing, Cause::Interrupt),
        NMI => {
            if interrupts::acknowledge_nmi() {
                trap::nmi(frame.pc);
            }
            if frame.status & MODE == 0 {
                cpu::allow_nmis();
            }
            Cause::Nothing
        }
        EXCEPTION if class(frame) == SYSTEM_CALL => Cause::Call,
        EXCEPTION => fault(frame).map_or(Cause::Unexpected, Cause::Fault),
        _ => Cause::Unexpected,
    }
}

/// Returns the class of a synchronous exception.
fn class(frame: &TrapFrame) -> u64 {
    frame.syndrome >> 26 & 0x3f
}

/// Returns the page fault that an exception reports, or `None` for other exceptions.
fn fault(frame: &TrapFrame) -> Option<Fault> {
    let class = class(frame);
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
    trap::from_kernel(frame, cause(frame, kind));
}

/// The registers of user mode on one thread. While user mode runs, the kernel's stack pointer contains this address.
#[repr(C, align(16))]
pub struct Context {
    pub frame: TrapFrame,
    /// The kernel's real stack pointer; written by `user_enter`.
    kernel_stack: u64,
    /// The kind of exception that left user mode; written by the vectors.
    kind: u64,
}
const _: () = assert!(size_of::<TrapFrame>() == 36 * 8);

impl Context {
    /// Creates a context that begins at `entry` with a stack and three arguments.
    pub fn new(entry: u64, stack: u64, arguments: [u64; 3]) -> Self {
        // Status 0 means user mode with everything unmasked.
        let mut frame = TrapFrame { pc: entry, sp: stack, ..TrapFrame::default() };
        frame.x[..3].copy_from_slice(&arguments);
        Context { frame, kernel_stack: 0, kind: 0 }
    }

    /// Enters user mode, and returns when it's left.
    ///
    /// # Safety
    /// Interrupts are masked.
    pub unsafe fn enter(&mut self) {
        // SAFETY: interrupts are masked until user mode runs. The vectors save the frame at its place.
        unsafe { user_enter(self) };
    }

    /// Returns the reason for leaving user mode.
    pub fn cause(&mut self) -> Cause {
        cause(&self.frame, self.kind)
    }

    /// Returns the number and the operands of a system call.
    pub fn call(&self) -> [u64; 7] {
        core::array::from_fn(|index| self.frame.x[index])
    }

    /// Sets a system call's result: a value and an error number (0 for success).
    pub fn answer(&mut self, value: u64, error: u64) {
        self.frame.x[0] = value;
        self.frame.x[1] = error;
    }

    /// Skips the access that faulted. Passes `error` to it in the register that the program's accesses reserve for that
    /// (`x3`).
    pub fn refuse_access(&mut self, error: u64) {
        self.frame.pc += 4;
        self.frame.x[3] = error;
    }
}
