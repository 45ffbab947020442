//! CPU 0 writes a dirty page back while CPU 1 writes it: what is not on the device must leave it dirty.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["22"],
    finds: &["VmCleansBeforeFlush"],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::over_vm("vm-sync-write", "writeback against write", 2, start, body)
        .with_memory([16, 0])
        .then(after)
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
    if cpu == 0 {
        k.sync(0);
        k.page_out(0, 1);
    } else {
        k.write(0, 2);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.read_file(0, 0) == Some(2),
        "what was written to a file is lost",
    );
}
