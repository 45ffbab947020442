//! After a fork, CPU 0 and CPU 1 write a page that both processes still share, and read it again.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-copy-on-write",
        "copy on write against write",
        2,
        start,
        body,
    )
    .with_memory([24, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
        k.fork();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write(0, 2);
    } else {
        k.write(0, 3);
        k.read(0);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(2, 0) == Some(1),
        "the child's page has changed",
    );
}
