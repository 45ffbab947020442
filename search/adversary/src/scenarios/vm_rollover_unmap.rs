//! CPU 0 goes through so many processes that tags run out; CPU 1 unmaps a page of the first, which CPU 0
//! enters again.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["16"],
    must: &[
        (On::Scarce, Reach::Engine(Counter::Rollovers)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-rollover-unmap",
        "tag rollover against unmap",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
        for _ in 0..3 {
            k.spawn();
        }
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for process in [2, 3, 4, 1] {
            k.enter(process);
            k.read(0);
        }
    } else {
        k.unmap(0, 1);
    }
}
