//! CPU 1 goes idle and comes back while CPU 0 unmaps a page, whose frame comes back as another.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["34"],
    must: &[
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
    ],
    ..Scenario::over_vm("vm-idle-unmap", "idle against unmap", 2, start, body)
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
        k.idle();
        k.read(0);
    }
}
