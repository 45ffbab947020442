//! CPU 0 takes a clean page from a space, gives the table's lock back and then owes the flush; CPU 1, which has used
//! the page, switches away and back meanwhile. Its entries under the tag go before the slot's new page can be read.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L2"],
    must: &[(On::Every, Reach::Engine(Counter::DebtsTaken))],
    ..Scenario::engine(
        "lazy-late-switch",
        "a CPU switches while the debt of its page is taken",
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
        if k.fill_slot(0, 0, frame(0), frame(1)) {
            k.must_read(0, 0, Some(2));
        }
    } else {
        k.read(0);
        k.switch(1);
        k.switch(0);
        k.read(0);
    }
}
