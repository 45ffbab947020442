//! CPU 0 frees a table while CPU 1 runs its program, whose walker knows the table under user mode's own tag.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Isolated,
    finds: &[],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Every, Reach::Engine(Counter::Waited)),
    ],
    ..Scenario::engine(
        "isolated-table",
        "a table is freed that user mode's walker knows",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, SECOND, frame(1), true);
        k.link(0, SECOND);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_table(0, SECOND);
    } else {
        k.read(SECOND);
        k.read(SECOND);
    }
}
