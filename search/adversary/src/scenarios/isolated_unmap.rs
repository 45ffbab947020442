//! CPU 1 runs a program under a tag of user mode's own, and goes to another space and back, while CPU 0 unmaps a page
//! and takes the right to write away from another.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Isolated,
    finds: &["UserHalfKept", "WrongHalfNoted"],
    must: &[
        (On::Every, Reach::Engine(Counter::Sent)),
        (On::Every, Reach::Engine(Counter::SwitchKept)),
    ],
    ..Scenario::engine(
        "isolated-unmap",
        "what goes from the kernel's half goes from the user's",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(0, 1, frame(1), true);
        k.map(1, 0, frame(2), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
        k.protect(0, 1);
    } else {
        k.read(0);
        k.write(1, 1);
        k.switch(1);
        k.read(0);
        k.switch(0);
        k.read(0);
        k.write(1, 2);
    }
}
