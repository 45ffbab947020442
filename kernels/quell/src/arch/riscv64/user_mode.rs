//! User mode as a function call: [`Context::run`] enters it and returns when it ends.

use super::traps::{self, Cause, FROM_KERNEL, INTERRUPTS_WERE_ON, TrapFrame};
use super::{cpu as registers, interrupts};
use crate::cause::{Exit, Interrupt};
use crate::cpu::{self, CpuActivity};
use crate::{layout, trap};
use riscv::register::sstatus;

unsafe extern "C" {
    unsafe fn user_enter(context: *mut Context);
}

/// The registers of user mode on one thread. While user mode runs, sscratch contains this address.
#[repr(C, align(16))]
pub struct Context {
    frame: TrapFrame,
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

    /// Runs user mode until it's left. Interrupts are on afterwards.
    ///
    /// # Panics
    /// On an exception that isn't a page fault, because the user program is broken.
    pub fn run(&mut self) -> Exit {
        let this = cpu::this();
        loop {
            registers::mask_interrupts();
            this.set_doing(CpuActivity::User);
            // SAFETY: interrupts are masked until user mode runs. The vector saves the frame at its place and returns
            // here.
            unsafe { user_enter(self) };
            this.set_doing(CpuActivity::Kernel);
            match traps::cause(&self.frame) {
                Cause::Interrupt(number) => {
                    if let Some(interrupt) = interrupts::acknowledge(number) {
                        trap::interrupt(interrupt, self.frame.pc);
                        // A shootdown changes nothing that the caller checks.
                        if interrupt != Interrupt::Shootdown {
                            registers::restore_interrupts(true);
                            return Exit::Interrupt;
                        }
                    }
                }
                Cause::Call => {
                    self.frame.pc += 4;
                    if self.frame.x[A0] == layout::RELAX {
                        registers::relax();
                        continue;
                    }
                    registers::restore_interrupts(true);
                    this.counters.syscalls.add(1);
                    let words = core::array::from_fn(|index| self.frame.x[A0 + index]);
                    return Exit::Call(words);
                }
                Cause::Fault(fault) => {
                    registers::restore_interrupts(true);
                    return Exit::Fault(fault);
                }
                Cause::Spurious => {}
                Cause::Other => panic!("exception in user mode: {:#x?}", self.frame),
            }
        }
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

    /// Returns the address at which user mode continues.
    pub fn pc(&self) -> u64 {
        self.frame.pc
    }
}
