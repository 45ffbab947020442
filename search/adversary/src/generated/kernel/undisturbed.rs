//! CPUs that run an undisturbed program: the way into it, and every entry into the kernel.
//!
//! Such a program loads, stores and fetches, and signals others or waits for them. The CPU enters the kernel first for
//! everything else: an operation, an interrupt, a thread that preempts the program, an NMI. The program continues
//! undisturbed afterwards.
//!
//! While a CPU enters or leaves it uses none of the kernel's mappings, and an NMI may arrive: its handler enters the
//! kernel too, and leaves the CPU there. So judges examine a CPU's kernel half only if it is in the kernel for
//! certain. Once it has entered, everything in its TLB of that half must match the tables.

use super::state::{Kernel, Mode};
use crate::context;
use quell::Hardware;

impl Kernel<'_> {
    /// Returns the CPU to its program, if it runs one, undisturbed.
    pub(super) fn enter_user(&self) {
        let here = self.here();
        if self.program_of(self.me()).is_none() || here.preempts || here.mode != Mode::Kernel {
            return;
        }
        let were_on = self.hw.mask_interrupts();
        self.leave_kernel();
        self.hw.restore_interrupts(were_on);
    }

    /// The same with interrupts masked, or from an NMI handler that returns to such a program.
    pub(super) fn leave_kernel(&self) {
        self.update(|here| here.mode = Mode::Crossing);
        // SAFETY: from here until `enter_kernel` this kernel uses no page of its own half, and NMI handlers call that
        // first.
        unsafe { self.engine.this_cpu().enter_user() };
        self.update(|here| here.mode = Mode::Undisturbed);
    }

    /// Enters the kernel. Returns whether from a program that is to continue undisturbed.
    pub(super) fn enter_kernel(&self) -> bool {
        if self.here().mode == Mode::Kernel {
            return false;
        }
        let were_on = self.hw.mask_interrupts();
        let was = self.cross();
        self.hw.restore_interrupts(were_on);
        was == Mode::Undisturbed
    }

    /// The same for an NMI handler, which may have come in the middle of that.
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
