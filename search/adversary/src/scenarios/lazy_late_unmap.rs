//! CPU 0 takes a clean page from its space, gives the table's lock back and then owes the flush; CPU 1 unmaps the page
//! for the program meanwhile: it finds the entry cleared by a batch that is to flush, or one that owes, or one in
//! between.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["3", "19"],
    finds: &["SettleSkipped", "DebtEndsBeforeOwed"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::engine(
        "lazy-late-unmap",
        "a call meets an entry whose debt is taken without its lock",
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
        k.reclaim_then_owe(0, 0);
    } else {
        k.read(0);
        k.unmap(0, 0);
        k.read(0);
    }
}
