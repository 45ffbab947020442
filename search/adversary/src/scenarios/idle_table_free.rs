//! CPU 1 is idle with the root loaded while CPU 0 frees a page-table page below it.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["10"],
    finds: &["LazySkippedForTables", "LeavesCaughtUp"],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Interrupts, Reach::Engine(Counter::Waited)),
    ],
    ..Scenario::engine(
        "idle-table-free",
        "freeing a table under a lazy CPU",
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
        k.idle();
        k.switch(0);
        k.read(SECOND);
    }
}
