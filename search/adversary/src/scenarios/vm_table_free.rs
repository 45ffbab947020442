//! CPU 0 unmaps all that a leaf table maps, so that the table is freed; CPU 1 goes on walking it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["10", "11"],
    finds: &["VmFreesTableBeforeFlush", "VmTableFlushLeafOnly"],
    must: &[
        (On::Every, Reach::Engine(Counter::Requested)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::over_vm(
        "vm-table-free",
        "a table page is freed against a walk",
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
        k.map(0, 1);
        k.write(0, 3);
    } else {
        k.write(0, 2);
        k.read(0);
    }
}
