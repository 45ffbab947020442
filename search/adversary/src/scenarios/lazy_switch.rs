//! CPU 1 leaves a space with its entries kept; CPU 0 unmaps a page without a flush and reuses the frame; CPU 1 comes
//! back.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["SwitchIgnoresDebt"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::OwnTags, Reach::Engine(Counter::PaidBySwitch)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-switch",
        "a debt met by a context switch",
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
        k.switch(1);
        k.switch(0);
        k.read(0);
    }
}
