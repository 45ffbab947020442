//! CPU 0 cuts a file while CPU 1 faults on the page that goes: either the fault comes first and the page is
//! unmapped, or it is refused.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmLockTakenRelaxed"],
    must: &[
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::over_vm(
        "vm-truncate-fault",
        "truncation against fault",
        2,
        start,
        body,
    )
    .with_memory([16, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file(0, 1, file);
        k.map(4, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.truncate(0, 0);
        k.write(4, 5);
    } else {
        k.write(0, 2);
        k.read(0);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C3,
        k.holds(1, 0).is_none(),
        "a page beyond the end of its file is mapped",
    );
}
