//! Two CPUs page the same page out, and one of them takes it back and writes it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::over_vm(
        "vm-page-out-twice",
        "page-out against page-out",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    k.page_out(0, 1);
    if cpu == 1 {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}
