//! CPU 0 reclaims a page, its flush still to come; CPU 1 makes it read-only, finds the entry empty and returns; CPU 2
//! writes.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["3", "5"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Broadcast, Reach::Engine(Counter::Barriers)),
    ],
    ..Scenario::engine(
        "reclaim-protect",
        "a second actor meets a cleared entry: protect",
        3,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.reclaim(&[0], 0) {
                k.give_away(frame);
            }
        }
        1 => k.protect(0, 0),
        _ => {
            k.write(0, 1);
            k.write(0, 2);
        }
    }
}
