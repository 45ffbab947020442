//! CPU 1 is evicted from a space that it keeps lazily, goes offline without naming it, comes back and runs another;
//! then the space dies.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["RetireAsksAgain"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::Evicted)),
        (On::Every, Reach::Machine(Happening::Offline)),
        (On::Every, Reach::Machine(Happening::SpaceRetired)),
    ],
    ..Scenario::engine(
        "retire-offline",
        "exit of a space that a CPU left by going offline",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.link(0, SECOND);
    }
    if cpu == 1 {
        k.switch(0);
        k.idle();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_table(0, SECOND);
        k.tell(0);
        k.wait_for(1);
        k.retire(0);
    } else {
        k.wait_for(0);
        k.offline_unnamed();
        k.online();
        k.switch(1);
        k.tell(1);
        k.read(0);
    }
}
