//! CPU 1 finds that an earlier flush is owed and flushes, under no lock; meanwhile CPU 0 takes another page away
//! without a flush, and then unmaps it for the program. CPU 1 calls paid only debts from before it flushed.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &[],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::engine(
        "lazy-late-settle",
        "a debt that is taken while a second actor flushes",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
        k.map(0, 1, frame(1), false);
    }
    k.switch(0);
    if cpu == 0 {
        k.reclaim_lazily(0, 0);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_lazily(0, 1);
        k.unmap(0, 1);
        k.read(1);
    } else {
        k.engine.settle(k.space(0));
    }
}
