//! CPU 1 goes offline and comes back while CPU 0 unmaps a page that CPU 1 was using.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Machine(Happening::Offline)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm("vm-offline-unmap", "offline against unmap", 2, start, body)
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
        k.offline();
        k.online();
        k.enter(1);
        k.read(0);
    }
}
