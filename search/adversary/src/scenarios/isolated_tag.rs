//! CPU 1 runs three spaces under two tags, and two of user mode's own.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Isolated,
    finds: &["UserHalfOutlivesTag"],
    must: &[(On::Every, Reach::Engine(Counter::SwitchTagTaken))],
    ..Scenario::engine(
        "isolated-tag",
        "a tag goes to another space, in user mode too",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in 0..3 {
            k.map(space, 0, frame(space as u64), true);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(1, 0) {
            k.give_away(frame);
        }
    } else {
        for space in [0, 1, 2, 0] {
            k.switch(space);
            k.read(0);
        }
    }
}
