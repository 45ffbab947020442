//! CPU 1 leaves a space and comes back while a page goes from it, in a batch of CPU 0 that has no place for it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &[],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedBatch)),
        (On::OwnTags, Reach::Engine(Counter::SwitchBehind)),
    ],
    ..Scenario::engine(
        "unplaced-switch",
        "context switch against what no batch counts",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(1, 0, frame(0), true);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_crowded(0, 1, &[0]);
    } else {
        k.read(0);
        k.switch(0);
        k.switch(1);
        k.read(0);
    }
}
