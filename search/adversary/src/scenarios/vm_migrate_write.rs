//! CPU 0 moves a page to another node while CPU 1 writes it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMigratesBeforeFlush"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-migrate-write",
        "migration against write",
        2,
        start,
        body,
    )
    .with_memory([12, 4])
    .then(after)
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
        k.migrate(0, 1, 1);
    } else {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(1, 0) == Some(2),
        "what was written is lost on the way",
    );
}
