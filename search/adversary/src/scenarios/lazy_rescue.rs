//! A frame that owes a flush is wanted back by its page and, at the same moment, by an allocator.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["RescueUnchecked"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::Rescued)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine("lazy-rescue", "rescue against claim", 3, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.reclaim_lazily(0, 0) {
                k.rescue(0, 0, frame);
            }
        }
        1 => {
            k.claim(frame(0));
        }
        _ => {
            k.read(0);
            k.read(0);
        }
    }
}
