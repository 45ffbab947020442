//! CPU 0 unlinks a page-table page and frees it; CPU 1's walker may be on its way through.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["11", "29"],
    finds: &[
        "AckBeforeFlush",
        "EarlyAckForTables",
        "TablesFlushedAsLeaf",
        "RelaxedDone",
    ],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Interrupts, Reach::Engine(Counter::Waited)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
        (On::Broadcast, Reach::Engine(Counter::Barriers)),
    ],
    ..Scenario::engine(
        "table-free",
        "freeing a table against walkers",
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
