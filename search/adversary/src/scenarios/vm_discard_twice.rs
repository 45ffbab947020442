//! Two CPUs discard overlapping ranges: each finds entries that the other has cleared and not yet flushed.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["6"],
    finds: &["VmDiscardsUnsettled"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-discard-twice",
        "discard against discard",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 2);
        k.write(0, 1);
        k.write(1, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(0, 2);
        k.read(1);
    } else {
        k.discard(1, 1);
        k.read(1);
    }
}
