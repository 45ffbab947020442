//! A file page is reclaimed without a flush while CPU 1 takes every right to it away and CPU 2 reads it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-lazy-reclaim-protect",
        "lazy reclaim against protect",
        3,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.page_out(0, 1);
        }
        1 => {
            k.forbid(0, 1);
        }
        _ => {
            k.read(0);
            k.read(0);
        }
    }
}
