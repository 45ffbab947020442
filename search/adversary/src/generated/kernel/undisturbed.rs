//! CPUs that run a program and are not to be disturbed: the way into it, and every way back into the kernel.
//!
//! Such a program loads, stores and fetches, and tells others something or waits for them, where it is. Everything else
//! on its CPU is done by the kernel, which the CPU enters first: for an operation, an interrupt, a thread that preempts
//! the program, an NMI. The interrupted program goes on undisturbed afterwards.
//!
//! On its way in or out a CPU uses none of the kernel's mappings, and an NMI may come there: its handler enters the
//! kernel, too, and leaves the CPU there. So judges ask a CPU for nothing of the kernel's half unless it is in the
//! kernel for certain; as soon as it has entered, everything that its TLB holds of that half must be as the tables say.

use super::state::{Kernel, Mode};
use crate::context;
use quell::Hardware;

impl Kernel<'_> {
    /// The CPU goes on in its program, if it runs one, and is not to be disturbed there.
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

    /// The CPU comes into the kernel; whether from a program that is to go on undisturbed.
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
