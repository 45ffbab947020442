//! CPU 0 splits a large page while CPU 1 takes hold of it, to move it, and finds no room for all of it. CPU 1 runs the
//! process: its TLB may hold the large page until that is flushed.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

const PAGES: u64 = 512;
/// The page that CPU 0 drops, for which the large one is split.
const DROPPED: u64 = 5;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmSplitsUnlocked", "VmLinksBeforeFlush"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 50,
    steps: 16_000,
    ..Scenario::over_vm(
        "vm-split-migrate",
        "split against migration",
        2,
        start,
        body,
    )
    // One large block, in fast memory.
    .with_memory([1040, 8])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(0, PAGES);
        k.write(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(DROPPED, 1);
        k.write(0, 2);
    } else {
        k.migrate(0, 1, 1);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(FIRST_PROCESS, 0) == Some(2),
        "what was written is lost in the split",
    );
}
