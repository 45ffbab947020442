//! CPU 0 unmaps a page, and a thread that preempts it another one: the request of the second merges with
//! that of the first, whose interrupt must be on its way by then.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["PostingPreempted", "InboxLooksCross", "InboxPostsCross"],
    must: &[
        (On::Every, Reach::Machine(Happening::Preempted)),
        (On::Interrupts, Reach::Engine(Counter::Merged)),
    ],
    ..Scenario::engine(
        "nested-posting",
        "a flush that preempts a flush",
        2,
        start,
        body,
    )
    .preempted_by(|k, cpu| {
        if cpu == 0
            && let Some(frame) = k.unmap(1, 1)
        {
            k.give_away(frame);
        }
    })
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(1, 1, frame(1), true);
    }
    k.switch(1);
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.switch(1);
        k.read(1);
        k.switch(0);
        k.read(0);
    }
}
