//! CPU 0 takes the right to execute a page away; CPU 1 goes on fetching from it. It may still load and store.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["SkipWait", "SkipBarrier"],
    must: &[
        (On::Every, Reach::Machine(Happening::CallReturned)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::engine(
        "execute-access",
        "protection against instruction fetch",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.allow_execution(0, 0);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.forbid_execution(0, 0);
        k.fetch(0);
    } else {
        k.fetch(0);
        k.write(0, 1);
        k.fetch(0);
    }
}
