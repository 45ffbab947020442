//! User mode as a function call: [`Context::run`] enters it and returns when it ends.

use super::cpu::{USER_CODE, USER_DATA};
use super::traps::{FIRST_INTERRUPT, PAGE_FAULT, SYSTEM_CALL, TrapFrame};
use super::{cpu as registers, interrupts, traps};
use crate::cause::{Exit, Interrupt};
use crate::cpu::{self, CpuActivity};
use crate::trap;

unsafe extern "C" {
    unsafe fn user_enter(context: *mut Context);
}

/// The registers of user mode on one thread.
///
/// The processor aligns the stack pointer that it takes from the task state to 16 bytes, so the end of the frame must
/// have that alignment.
#[repr(C, align(16))]
pub struct Context {
    frame: TrapFrame,
    /// The kernel's stack pointer while user mode runs; written by `user_enter`.
    kernel_stack: u64,
    _aligned: u64,
}
const _: () = assert!(size_of::<TrapFrame>().is_multiple_of(16));

impl Context {
    /// Creates a context that begins at `entry` with a stack and three arguments.
    pub fn new(entry: u64, stack: u64, arguments: [u64; 3]) -> Self {
        let frame = TrapFrame {
            rip: entry,
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

    /// Runs user mode until it's left. Interrupts are on afterwards.
    ///
    /// # Panics
    /// On an exception that isn't a page fault, because the user program is broken.
    pub fn run(&mut self) -> Exit {
        let this = cpu::this();
        loop {
            registers::mask_interrupts();
            let top = (&raw mut self.kernel_stack) as u64;
            // SAFETY: interrupts are masked, so nothing uses the task state until user mode runs.
            unsafe {
                (*registers::local()).tss.privilege_stack_table[0] = x86_64::VirtAddr::new(top);
            }
            this.set_doing(CpuActivity::User);
            // SAFETY: the frame contains user selectors, and the entries save it at its place.
            unsafe { user_enter(self) };
            this.set_doing(CpuActivity::Kernel);
            match self.frame.vector {
                SYSTEM_CALL => {
                    registers::restore_interrupts(true);
                    this.counters.syscalls.add(1);
                    let f = &self.frame;
                    return Exit::Call([f.rax, f.rdi, f.rsi, f.rdx, f.r10, f.r8, f.r9]);
                }
                PAGE_FAULT => {
                    // We read this before another fault can arrive.
                    let fault = traps::fault(self.frame.error);
                    registers::restore_interrupts(true);
                    return Exit::Fault(fault);
                }
                vector @ FIRST_INTERRUPT.. => {
                    if let Some(interrupt) = interrupts::acknowledge(vector) {
                        trap::interrupt(interrupt, self.frame.rip);
                        // A shootdown changes nothing that the caller checks.
                        if interrupt != Interrupt::Shootdown {
                            registers::restore_interrupts(true);
                            return Exit::Interrupt;
                        }
                    }
                }
                vector => panic!("exception {vector} in user mode: {:#x?}", self.frame),
            }
        }
    }

    /// Sets a system call's result: a value and an error number (0 for success).
    pub fn answer(&mut self, value: u64, error: u64) {
        self.frame.rax = value;
        self.frame.rdx = error;
    }

    /// Skips the access that faulted. Passes `error` to it in the register that the program's accesses reserve for that
    /// (`rcx`). Such an access is an instruction of three bytes.
    pub fn refuse_access(&mut self, error: u64) {
        self.frame.rip += 3;
        self.frame.rcx = error;
    }

    /// Returns the address at which user mode continues.
    pub fn pc(&self) -> u64 {
        self.frame.rip
    }
}
