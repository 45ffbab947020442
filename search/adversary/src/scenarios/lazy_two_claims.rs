//! CPUs 0 and 1 claim two frames of the same debt; CPU 2 reads both pages.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
    ],
    ..Scenario::engine("lazy-two-claims", "two claims of one debt", 3, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
        k.map(0, 1, frame(1), false);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            let first = k.reclaim_lazily(0, 0);
            k.reclaim_lazily(0, 1);
            if let Some(frame) = first {
                k.claim(frame);
            }
        }
        1 => {
            k.claim(frame(1));
        }
        _ => {
            k.read(0);
            k.read(1);
        }
    }
}
