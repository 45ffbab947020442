//! A file page is mapped to write and dirty; CPU 0 reclaims it, CPU 1 writes it meanwhile, and memory is so
//! short that the frame is claimed at once: nothing that was written may be lost.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L3"],
    finds: &["VmOwesDirtyPages"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm(
        "vm-owed-dirty",
        "reclaim of a dirty page against write and reuse",
        2,
        start,
        body,
    )
    .with_memory([7, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create(1, 1);
        k.map_file(0, 1, file);
        k.write(0, 1);
        k.map(1, 2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.page_out(0, 1);
        k.read(1);
        k.read(2);
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
