//! CPU 0 unmaps a dirty page and its flush is still to come; CPU 1 finds no writable entry and cleans the
//! page; CPU 2 still writes through the old entry.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["22"],
    finds: &["VmCleansUnsettled", "VmUnlinksBeforeFlush"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::over_vm("vm-unmap-sync", "unmap against writeback", 3, start, body)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create(1, 1);
        k.map_file(0, 1, file);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.unmap(0, 1),
        1 => {
            k.sync(0);
        }
        _ => {
            k.write(0, 2);
        }
    }
}
