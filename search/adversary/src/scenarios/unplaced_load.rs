//! CPU 1 comes back to a space of which it has kept entries while a page goes from it, in a batch of CPU 0 that has no
//! place for it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["UnplacedLooksFirst"],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedBatch)),
        (On::OwnTags, Reach::Engine(Counter::SwitchBehind)),
    ],
    ..Scenario::engine(
        "unplaced-load",
        "a space is loaded again while what no batch counts goes from it",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(1, 0, frame(0), true);
    } else {
        k.switch(1);
        k.read(0);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_crowded(0, 1, &[0]);
    } else {
        k.switch(1);
        k.read(0);
    }
}
