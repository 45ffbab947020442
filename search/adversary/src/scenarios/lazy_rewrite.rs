//! CPU 0 unmaps a clean page without a flush; CPU 1 maps another page of the file there; CPU 2 reads.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L1", "L2", "L3"],
    finds: &["RefillSkipsDebt"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByRefill)),
    ],
    ..Scenario::engine(
        "lazy-rewrite",
        "an owed entry is written again",
        3,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.fill(frame(0), 1);
        k.fill(frame(1), 2);
        k.map(0, 0, frame(0), false);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.reclaim_lazily(0, 0);
        }
        1 => {
            if k.refill(0, 0, frame(0), frame(1)) {
                k.must_read(0, 0, Some(2));
            }
        }
        _ => {
            k.read(0);
            k.read(0);
        }
    }
}
