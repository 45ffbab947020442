//! CPU 0 collapses 512 pages into a large one while CPU 1 writes one of them.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

const PAGES: u64 = 512;
/// The page that is written: the first that is taken, so its old entry lives longest.
const WRITTEN: u64 = 0;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmCollapseCopiesBeforeFlush"],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    one_in: 100,
    steps: 16_000,
    ..Scenario::over_vm(
        "vm-collapse-write",
        "collapse against write",
        2,
        start,
        body,
    )
    .with_memory([2072, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, PAGES);
        for page in 0..PAGES {
            k.write(page, 1);
        }
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        assert!(k.collapse(0), "there is room for a large page");
    } else {
        k.write(WRITTEN, 2);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(FIRST_PROCESS, WRITTEN) == Some(2),
        "what was written is lost on the way",
    );
}
