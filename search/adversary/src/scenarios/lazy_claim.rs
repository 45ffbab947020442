//! CPU 0 unmaps a clean page without a flush and then wants its frame for a new owner; CPU 1 goes on reading.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L4"],
    finds: &["ClaimSkipsDebt"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-claim",
        "a frame that owes a flush gets a new owner",
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
        if let Some(frame) = k.reclaim_lazily(0, 0) {
            k.claim(frame);
        }
    } else {
        k.read(0);
        k.read(0);
    }
}
