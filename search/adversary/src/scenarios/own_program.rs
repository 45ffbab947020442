//! CPU 1 runs a program and is not to be disturbed, while CPU 0 unmaps two pages of the kernel's half, one of them
//! global and one not. CPU 1 enters the kernel at any moment, before, between or after, and uses both.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["EntrySkipsFlush"],
    must: &[
        (On::Every, Reach::Machine(Happening::KernelAccess)),
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
        (On::Interrupts, Reach::Engine(Counter::FlushedFull)),
    ],
    ..Scenario::engine(
        "own-program",
        "the kernel's mappings change while a CPU runs a program undisturbed",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map_own(OWN_TAGGED, frame(1));
    }
    k.switch(0);
    if cpu == 1 {
        k.enter_user();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in [OWN, OWN_TAGGED] {
            if let Some(frame) = k.unmap_own(page) {
                k.give_away(frame);
            }
        }
    } else {
        k.enter_kernel();
        k.read_own(OWN);
        k.read_own(OWN_TAGGED);
    }
}
