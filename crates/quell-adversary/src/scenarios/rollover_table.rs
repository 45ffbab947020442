//! CPU 0 leaves a space; before it has loaded the next root, CPU 1 uses up all tags, comes to the space that CPU 0
//! leaves, under whatever tag, and frees one of its tables. It does so twice over: the space may have kept its tag the
//! first time, and lose it the second.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    on: On::Broadcast,
    finds: &["RolloverForgetsLeaving"],
    must: &[
        (On::Scarce, Reach::Engine(Counter::Rollovers)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::engine(
        "rollover-table",
        "tag rollover while a CPU changes its root",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, SECOND, frame(0), true);
        k.link(0, SECOND);
        k.switch(0);
        k.read(SECOND);
    } else {
        k.switch(1);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.switch(1);
    } else {
        for space in [2, 3, 0, 2, 3, 0] {
            k.switch(space);
        }
        k.free_table(0, SECOND);
    }
}
