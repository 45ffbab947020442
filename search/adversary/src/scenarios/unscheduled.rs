//! In a guest: the hypervisor does not run CPU 1 whenever it is asked to flush, and flushes it before it runs it again.
//! A page of its space is unmapped meanwhile, and then the space ends, whose root CPU 1 has kept lazily.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["RetirementLeftToReentry"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::SkippedNotRunning)),
        (On::Every, Reach::Machine(Happening::SpaceRetired)),
        (On::Every, Reach::Engine(Counter::Evicted)),
    ],
    ..Scenario::engine(
        "unscheduled",
        "unmap, and exit of a space, against a virtual CPU that does not run",
        2,
        start,
        body,
    )
    .with_unscheduled(0b10)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(1 - cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
        // Its last thread has gone.
        k.wait_for(0);
        k.retire(0);
    } else {
        k.read(0);
        k.idle();
        k.tell(0);
        k.switch(1);
        k.read(0);
    }
}
