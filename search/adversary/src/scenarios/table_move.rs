//! CPU 0 moves a page-table page with all that it maps to another address, and maps one more page there;
//! CPU 1 uses the old addresses. Nothing is freed: what a walker still reaches through the pointer that
//! it has kept is wrong because the move has returned.

use crate::bare_kernel::{BareKernel, SECOND, THIRD, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["TablesFlushedAsLeaf", "BasePagesInLargeStrides"],
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
        (On::Broadcast, Reach::Engine(Counter::Barriers)),
    ],
    ..Scenario::engine(
        "table-move",
        "moving a table against its old addresses",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..2 {
            k.map(0, SECOND + page, frame(page), true);
        }
        k.link(0, SECOND);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.move_table(0, 2);
        // Into the table that is at home there now.
        k.map(0, SECOND + 2, frame(2), false);
        k.read(THIRD + 2);
    } else {
        k.read(SECOND + 1);
        k.read(SECOND + 2);
    }
}
