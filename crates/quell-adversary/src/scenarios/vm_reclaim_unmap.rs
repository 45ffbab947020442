//! CPU 0 reclaims a page: its entry is cleared and the flush comes later. CPU 1 unmaps the page in between,
//! finds nothing to flush, and must not return before the old entry is gone.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["6", "19"],
    finds: &["VmUnmapsUnsettled"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm("vm-reclaim-unmap", "reclaim against unmap", 2, start, body)
        .with_memory([8, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim(1);
    } else {
        k.unmap(0, 1);
        k.read(0);
    }
}
