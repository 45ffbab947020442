//! CPU 0 writes a large page that it shares with a child, and there is no second block to copy it to: the
//! page is to be split. Meanwhile CPU 1 ends the child, and CPU 0 alone holds the page.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

/// The child's number: the second process.
const CHILD: u32 = 2;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmSplitsHeldBlock"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 50,
    steps: 64_000,
    ..Scenario::over_vm(
        "vm-copy-split",
        "copy of a large page against exit",
        2,
        start,
        body,
    )
    // One large block, and enough around it for a copy in pieces.
    .with_memory([1110, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(0, 512);
        k.write(0, 1);
        assert_eq!(k.fork(), CHILD);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        assert!(k.write(0, 2), "there is room for a copy in pieces");
    } else {
        k.exit(CHILD);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(FIRST_PROCESS, 0) == Some(2),
        "what was written is lost on the way",
    );
}
