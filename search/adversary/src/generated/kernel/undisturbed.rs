//! Runs undisturbed programs: the way to the program, and every entry into the kernel.
//!
//! Such a program loads, stores and fetches, and signals others or waits for them. For everything else the CPU enters
//! the kernel first: an operation, an interrupt, a thread that preempts the program, an NMI. Afterwards the program
//! continues undisturbed.
//!
//! While a CPU enters or leaves, it uses none of the kernel's mappings. An NMI may arrive meanwhile: its handler also
//! enters the kernel, and leaves the CPU in that state. So a CPU's kernel half is judged only if the CPU is certainly
//! in the kernel. Once it has entered, everything that its TLB holds of that half must match the tables.

use super::state::{Kernel, Mode};
use crate::context;
use quell::Hardware;

impl Kernel<'_> {
    /// Returns the CPU to its program, if it runs one. The program is undisturbed from now on.
    pub(super) fn enter_user(&self) {
        let here = self.here();
        if self.program_of(self.me()).is_none() || here.preempts || here.mode != Mode::Kernel {
            return;
        }
        let were_on = self.hw.mask_interrupts();
        self.leave_kernel();
        self.hw.restore_interrupts(were_on);
    }

    /// Returns to an undisturbed program, with interrupts masked or from an NMI handler.
    pub(super) fn leave_kernel(&self) {
        self.update(|here| here.mode = Mode::Crossing);
        // SAFETY: until `enter_kernel`, this kernel uses no page of its own half, and NMI handlers call that first.
        unsafe { self.engine.this_cpu().enter_user() };
        self.update(|here| here.mode = Mode::Undisturbed);
    }

    /// Enters the kernel. Returns whether an undisturbed program was interrupted, which is to continue undisturbed.
    pub(super) fn enter_kernel(&self) -> bool {
        if self.here().mode == Mode::Kernel {
            return false;
        }
        let were_on = self.hw.mask_interrupts();
        let was = self.cross();
        self.hw.restore_interrupts(were_on);
        was == Mode::Undisturbed
    }

    /// Enters the kernel from an NMI handler, which may have interrupted an entry.
    pub(super) fn enter_kernel_from_nmi(&self) -> bool {
        self.here().mode != Mode::Kernel && self.cross() == Mode::Undisturbed
    }

    fn cross(&self) -> Mode {
        let was = self.here().mode;
        self.update(|here| here.mode = Mode::Crossing);
        self.engine.this_cpu().enter_kernel();
        let me = self.me();
        if self.layout.own {
            context::with(|core| core.judge_kernel(me));
        }
        let now = match was {
            Mode::Undisturbed => Mode::Kernel,
            was => was,
        };
        self.update(|here| here.mode = now);
        was
    }
}
