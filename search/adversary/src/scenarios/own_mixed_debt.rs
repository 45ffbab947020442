//! CPU 0 takes a page of a program and a page of the kernel away, with one batch that may owe its flush; then it gives
//! both away. CPU 1 runs that program and is not to be disturbed: what is owed of the kernel's mappings may wait for
//! its entry, what is owed of its program's may not.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["MixedDebtOwed"],
    must: &[(On::Interrupts, Reach::Engine(Counter::Sent))],
    ..Scenario::engine(
        "own-mixed-debt",
        "one batch may owe for the kernel and for an undisturbed program",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map(0, 0, frame(2), false);
    }
    k.switch(0);
    if cpu == 1 {
        k.enter_user();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for frame in k.reclaim_with_own_lazily(0, 0, OWN) {
            k.claim(frame);
        }
        k.tell(0);
    } else {
        k.read(0);
        k.wait_for(0);
        k.read(0);
        k.enter_kernel();
    }
}
