//! CPU 0 uses up all tags, comes to the space that CPU 1 runs and unmaps a page there.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["16"],
    on: On::Broadcast,
    must: &[(On::Scarce, Reach::Engine(Counter::Rollovers))],
    ..Scenario::engine(
        "rollover-unmap",
        "tag rollover against unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(1 - cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in [2, 3, 4, 0] {
            k.switch(space);
        }
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.read(0);
    }
}
