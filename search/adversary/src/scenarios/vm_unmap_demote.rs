//! CPU 0 unmaps a dirty file page and its flush is still to come; CPU 1 moves the page to slow memory;
//! CPU 2 still writes through the old entry.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMigratesUnsettled", "VmOwesDirtyPages"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm("vm-unmap-demote", "unmap against demotion", 3, start, body)
        .with_memory([6, 2])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create(1, 1);
        k.map_file(0, 1, file);
        k.write(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.unmap(0, 1),
        1 => {
            k.demote(1);
        }
        _ => {
            k.write(0, 2);
        }
    }
}
