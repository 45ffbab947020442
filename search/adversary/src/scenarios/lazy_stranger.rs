//! CPU 1 flushes for a reason of its own just as CPU 0 begins to owe: the flush pays, or it does not.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["ClockReadAfterFlush"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Interrupts, Reach::Engine(Counter::PaidByOthers)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-stranger",
        "a debt paid by a stranger's flush",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
    }
    k.switch(1 - cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.reclaim_lazily(0, 0) {
            k.claim(frame);
        }
    } else {
        k.flush_all(0);
        k.read(0);
    }
}
