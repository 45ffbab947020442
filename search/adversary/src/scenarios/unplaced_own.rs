//! Two pages of the kernel's half go, one of them global and one not, in a batch of CPU 0 that has no place for them;
//! CPU 1 goes from one space to another and uses them.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &[],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedBatch)),
        (On::Every, Reach::Machine(Happening::KernelAccess)),
    ],
    ..Scenario::engine(
        "unplaced-own",
        "a batch has no place for the kernel's mappings",
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
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_own_crowded(0, &[OWN, OWN_TAGGED]);
    } else {
        k.read_own(OWN_TAGGED);
        k.switch(0);
        k.read_own(OWN);
        k.read_own(OWN_TAGGED);
    }
}
