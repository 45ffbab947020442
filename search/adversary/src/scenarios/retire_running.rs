//! CPU 0 retires a space whose last thread has made its last access on CPU 1, which has yet to switch away: it answers
//! while it still has the root loaded.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["RetireTrustsAnswer"],
    must: &[(On::Every, Reach::Machine(Happening::SpaceRetired))],
    ..Scenario::engine(
        "retire-running",
        "exit of a space that a CPU is on its way out of",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    } else {
        k.switch(0);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.wait_for(1);
        k.retire(0);
    } else {
        k.read(0);
        k.tell(1);
        k.switch(1);
        k.read(0);
    }
}
