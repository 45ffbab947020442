//! CPU 1 enters the kernel from a program that was not to be disturbed, and an NMI handler uses a mapping of the kernel
//! on the way; CPU 0 has taken that away.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["NestedEntryUnflushed"],
    nmis: 1,
    must: &[
        (On::Every, Reach::Machine(Happening::KernelAccess)),
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
    ],
    ..Scenario::engine(
        "own-program-nmi",
        "an NMI on the way from an undisturbed program into the kernel",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
    }
    k.switch(0);
    if cpu == 1 {
        k.enter_user();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap_own(OWN) {
            k.give_away(frame);
        }
    } else {
        k.enter_kernel();
    }
}
