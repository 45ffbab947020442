//! CPU 0 unmaps a page, and its frame comes back as another page; CPU 1 goes on using the first.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["30"],
    must: &[
        (On::Every, Reach::Engine(Counter::Requested)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::Zeroed)),
    ],
    ..Scenario::over_vm(
        "vm-unmap-access",
        "unmap, free and zero against access",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 2);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 1);
        k.read(1);
    } else {
        k.write(0, 2);
        k.read(0);
    }
}
