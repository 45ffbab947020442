//! CPU 1 is idle, or in between, while CPU 0 unmaps a page of its space without a flush, then one of
//! its own space, and reuses the first frame: what no CPU is known to hold needs no interrupt, but
//! CPU 1 comes back.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["ClaimTrustsFlushes"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-younger",
        "a debt of an idle CPU with a younger one behind it",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
        k.map(1, 1, frame(1), false);
    }
    k.switch(1 - cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let first = k.reclaim_lazily(0, 0);
        k.reclaim_lazily(1, 1);
        if let Some(frame) = first {
            k.claim(frame);
        }
    } else {
        k.read(0);
        k.idle();
        k.switch(0);
        k.read(0);
    }
}
