//! A private file page is reclaimed without a flush while CPU 1 writes it, which makes a copy of its own.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::Captured)),
    ],
    ..Scenario::over_vm(
        "vm-lazy-reclaim-private",
        "lazy reclaim against copy on write",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_private(0, 1, file);
        k.read(0);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.page_out(0, 1);
        k.read(0);
    } else {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}
