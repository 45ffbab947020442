//! CPU 0 pages a page out while CPU 1 writes it: what was written must come back.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["3"],
    finds: &["VmWritesOutBeforeFlush"],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::over_vm(
        "vm-page-out-write",
        "page-out against write",
        2,
        start,
        body,
    )
    .with_memory([16, 0])
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
        k.page_out(0, 1);
    } else {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}

fn after(k: &VmKernel<'_>) {
    let fact = k.holds(1, 0) == Some(2);
    k.must(
        Clause::C2,
        fact,
        "what was written before the page went out is lost",
    );
}
