//! A file page was reclaimed without a flush. CPU 0 moves the area that it was in; once that has returned, CPU 1 may not
//! read the page at its old place.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmLiftsMarker"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-lazy-reclaim-remap",
        "remap of what was reclaimed lazily",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.keep_table();
    } else {
        k.read(0);
        k.page_out(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.remap(0, 1, 8);
        k.tell(0);
    } else {
        k.wait_for(0);
        k.read(0);
    }
}
