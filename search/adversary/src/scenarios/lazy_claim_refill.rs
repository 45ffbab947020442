//! CPU 0 unmaps a clean page without a flush, and claims its frame; CPU 1, which has the translation, maps another page
//! there meanwhile, and reads it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["ClaimTakesFirst"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
        (On::Every, Reach::Engine(Counter::PaidByRefill)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-claim-refill",
        "an owed entry is written again while its frame is claimed",
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
        if let Some(frame) = k.reclaim_lazily(0, 0) {
            k.claim(frame);
        }
    } else {
        k.read(0);
        if k.refill(0, 0, frame(0), frame(1)) {
            k.must_read(0, 0, Some(2));
            k.read(0);
        }
    }
}
