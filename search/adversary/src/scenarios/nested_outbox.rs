//! CPU 0 unmaps a page, and a thread that preempts it, while it waits, another one of the same space: where
//! requests lie with their sender, the second must not write over the first before CPU 1 has read it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["OutboxOverwritten"],
    must: &[(On::Every, Reach::Machine(Happening::Preempted))],
    ..Scenario::engine(
        "nested-outbox",
        "a flush that preempts one that waits",
        3,
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
    k.switch(usize::from(cpu == 2));
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.unmap(0, 0) {
                k.give_away(frame);
            }
        }
        1 => {
            k.read(0);
            k.read(0);
        }
        _ => {
            k.read(1);
        }
    }
}
