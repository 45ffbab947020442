//! CPU 0 discards two pages in the middle of an area for large pages. After it has found nothing to split there, CPU 1
//! writes beside them, and its fault maps a large page across both edges.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

/// The first page of the area, and its length.
const AREA: u64 = 512;
/// What CPU 1 writes, outside of what CPU 0 discards.
const WRITTEN: u64 = AREA + 1;
const DISCARDED: u64 = AREA + 2;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmDiscardsWholePage"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 50,
    steps: 16_000,
    ..Scenario::over_vm(
        "vm-discard-fault",
        "discard against a fault for a large page",
        2,
        start,
        body,
    )
    .with_memory([1100, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(AREA, AREA);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(DISCARDED, 2);
    } else {
        k.write(WRITTEN, 2);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(FIRST_PROCESS, WRITTEN) == Some(2),
        "what was written beside the range is gone",
    );
}
