//! CPU 0 unmaps a clean page without a flush; CPU 1 unmaps it for the program and returns.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["3", "19"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::engine(
        "lazy-unmap-call",
        "an owed entry meets a call",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_lazily(0, 0);
    } else {
        k.read(0);
        k.unmap(0, 0);
        k.read(0);
    }
}
