//! CPU 0 uses up all tags while CPU 1 changes between two spaces.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["16"],
    on: On::Broadcast,
    finds: &["TagLockTakenRelaxed"],
    must: &[(On::Scarce, Reach::Engine(Counter::Rollovers))],
    ..Scenario::engine(
        "rollover-switch",
        "tag rollover against a context switch",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in 0..5 {
            k.map(space, 0, frame(space as u64), true);
        }
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in [2, 3, 4, 0] {
            k.switch(space);
            k.read(0);
        }
        k.unmap(1, 0);
    } else {
        for space in [0, 1] {
            k.switch(space);
            k.read(0);
        }
    }
}
