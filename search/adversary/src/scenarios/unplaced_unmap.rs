//! Two pages go, one after the other, from a space for which the batch of CPU 0 has no place. CPU 1 finds them gone
//! before the batch is over, and relies on it: what it flushes for the first is not for the second.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["UnplacedNotOwed", "UnplacedReadAfterFlush"],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedBatch)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::engine(
        "unplaced-unmap",
        "a second actor meets what no batch counts",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(1, 0, frame(0), true);
        k.map(1, 1, frame(1), true);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_crowded(0, 1, &[0, 1]);
    } else {
        k.read(1);
        k.unmap_cleared(1, 0);
        k.read(0);
        k.unmap(1, 1);
        k.read(1);
    }
}
