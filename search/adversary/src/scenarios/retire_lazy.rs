//! A space dies while CPU 1 still has its root loaded lazily, or is just switching away from it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["25"],
    finds: &["RetireSkipsEviction"],
    must: &[
        (On::Every, Reach::Machine(Happening::SpaceRetired)),
        (On::Every, Reach::Engine(Counter::Evicted)),
    ],
    ..Scenario::engine(
        "retire-lazy",
        "exit of a space against lazy CPUs",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(1 - cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        // Its last thread has gone.
        k.wait_for(0);
        k.retire(0);
    } else {
        k.read(0);
        k.idle();
        k.tell(0);
        k.switch(1);
        k.read(0);
    }
}
