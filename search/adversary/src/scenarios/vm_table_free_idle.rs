//! CPU 0 unmaps all that a leaf table maps while CPU 1, idle, may still walk it speculatively.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["10"],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Interrupts, Reach::Engine(Counter::Evicted)),
    ],
    // One schedule in a hundred interrupts the idle CPU.
    one_in: 1,
    ..Scenario::over_vm(
        "vm-table-free-idle",
        "a table page is freed against an idle CPU",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 1);
    } else {
        k.idle();
        k.read(0);
    }
}
