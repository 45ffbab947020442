//! A table is freed of a space for which the batch of CPU 0 has no place, and which CPU 1 keeps lazily.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["UnplacedTablesAreLeaves"],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedBatch)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::engine(
        "unplaced-tables",
        "a table goes from a space for which there is no place",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(1, SECOND, frame(1), true);
        k.link(1, SECOND);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_table_crowded(0, 1, SECOND);
    } else {
        k.idle();
        k.switch(1);
        k.read(SECOND);
    }
}
