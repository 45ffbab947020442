//! CPU 0 takes a clean page from its space and from its file, gives the locks back and then owes the flush; CPU 1 fills
//! the slot of the page cache again meanwhile, and reads what is there now.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L2", "L3"],
    finds: &["RefillSkipsDebt"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByRefill)),
    ],
    ..Scenario::engine(
        "lazy-late-fill",
        "a slot is filled while the debt of its page is taken",
        2,
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
    if cpu == 0 {
        k.reclaim_then_owe(0, 0);
    } else {
        k.read(0);
        if k.fill_slot(0, 0, frame(0), frame(1)) {
            k.must_read(0, 0, Some(2));
            k.read(0);
        }
    }
}
