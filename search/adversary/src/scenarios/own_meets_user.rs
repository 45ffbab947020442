//! Two initiators shoot at CPU 2: one has unmapped a page of a program, the other one of the kernel.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelLostInMerge"],
    must: &[
        (On::Every, Reach::Machine(Happening::KernelAccess)),
        (On::Interrupts, Reach::Engine(Counter::Merged)),
    ],
    ..Scenario::engine(
        "own-meets-user",
        "a request for the kernel's mappings meets one for a program's",
        3,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map(0, 0, frame(1), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.unmap_own(OWN) {
                k.give_away(frame);
            }
        }
        1 => {
            if let Some(frame) = k.unmap(0, 0) {
                k.give_away(frame);
            }
        }
        _ => {
            k.read_own(OWN);
            k.read(0);
            k.read_own(OWN);
        }
    }
}
