//! A page goes from a space for which the batch of CPU 0 has no place, and which CPU 1 runs.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["UnplacedUnflushed"],
    must: &[(On::Every, Reach::Engine(Counter::EscalatedBatch))],
    ..Scenario::engine(
        "unplaced-access",
        "a batch has no place for the space of what it unmaps",
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
        k.read(0);
    }
}
