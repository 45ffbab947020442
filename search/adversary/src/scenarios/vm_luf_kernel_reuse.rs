//! A file page is mapped to read and reclaimed without a flush. CPU 0 needs its frame for a page of its own;
//! CPU 1 must not read that through the old entry.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L4"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm(
        "vm-luf-kernel-reuse",
        "reclaimed lazily, the frame reused",
        2,
        start,
        body,
    )
    .with_memory([7, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.map(1, 3);
    } else {
        k.page_out(0, 1);
        // Nothing else is free.
        k.read(1);
        k.read(2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write(3, 7);
    } else {
        k.read(0);
    }
}
