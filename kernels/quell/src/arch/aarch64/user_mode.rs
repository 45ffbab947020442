//! User mode as a function call: [`Context::run`] enters it and returns when it ends.

use super::traps::{EXCEPTION, INTERRUPT, NMI, SYSTEM_CALL, TrapFrame};
use super::{cpu as registers, interrupts, traps};
use crate::cause::{Exit, Interrupt};
use crate::cpu::{self, CpuActivity};
use crate::trap;

unsafe extern "C" {
    unsafe fn user_enter(context: *mut Context);
}

/// The registers of user mode on one thread. While user mode runs, the kernel's stack pointer contains this address.
#[repr(C, align(16))]
pub struct Context {
    frame: TrapFrame,
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

    /// Runs user mode until it's left. Interrupts are on afterwards.
    ///
    /// # Panics
    /// On an exception that isn't a page fault, because the user program is broken.
    pub fn run(&mut self) -> Exit {
        let this = cpu::this();
        loop {
            registers::mask_interrupts();
            this.set_doing(CpuActivity::User);
            // SAFETY: interrupts are masked until user mode runs. The vectors save the frame at its place and return
            // here.
            unsafe { user_enter(self) };
            this.set_doing(CpuActivity::Kernel);
            match self.kind {
                INTERRUPT => {
                    if let Some(interrupt) = interrupts::acknowledge() {
                        trap::interrupt(interrupt, self.frame.pc);
                        // A shootdown changes nothing that the caller checks.
                        if interrupt != Interrupt::Shootdown {
                            registers::restore_interrupts(true);
                            return Exit::Interrupt;
                        }
                    }
                }
                NMI => {
                    if interrupts::acknowledge_nmi() {
                        trap::nmi(self.frame.pc);
                    }
                    registers::allow_nmis();
                }
                EXCEPTION if traps::class(self.frame.syndrome) == SYSTEM_CALL => {
                    registers::restore_interrupts(true);
                    this.counters.syscalls.add(1);
                    let [a, b, c, d, e, f, g, ..] = self.frame.x;
                    return Exit::Call([a, b, c, d, e, f, g]);
                }
                EXCEPTION => {
                    if let Some(fault) = traps::fault(&self.frame) {
                        registers::restore_interrupts(true);
                        return Exit::Fault(fault);
                    }
                    panic!("exception in user mode: {:#x?}", self.frame);
                }
                _ => panic!("unexpected exception in user mode: {:#x?}", self.frame),
            }
        }
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

    /// Returns the address at which user mode continues.
    pub fn pc(&self) -> u64 {
        self.frame.pc
    }
}
