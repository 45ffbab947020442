//! CPU 0 unmaps two pages of the kernel's half, one of them global and one not. CPU 1 is idle, or has left its
//! root, and uses the kernel's mappings all the same.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelSkipsIdle"],
    must: &[
        (On::Every, Reach::Machine(Happening::KernelAccess)),
        (On::Interrupts, Reach::Engine(Counter::Sent)),
    ],
    ..Scenario::engine(
        "own-unmap",
        "the kernel's mappings change while a CPU is idle",
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
        k.idle();
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
        k.read_own(OWN);
        k.read_own(OWN_TAGGED);
    }
}
