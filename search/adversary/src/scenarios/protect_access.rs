//! CPU 0 takes the right to write away and captures the content; CPU 1 goes on writing.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21", "22"],
    must: &[
        (On::Every, Reach::Engine(Counter::Requested)),
        (On::Every, Reach::Machine(Happening::Captured)),
    ],
    ..Scenario::engine(
        "protect-access",
        "protection and capture against access",
        2,
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
    if cpu == 0 {
        k.protect(0, 0);
        k.capture(frame(0));
    } else {
        k.write(0, 1);
        k.write(0, 2);
    }
}
