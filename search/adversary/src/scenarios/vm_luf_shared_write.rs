//! One file is mapped to read at page 0 and to write at page 1. Page 0 is reclaimed without a flush; CPU 0
//! writes through page 1; CPU 1 must not read old bytes at page 0.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L3"],
    finds: &["VmRefillsOwedSlot"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::FrameRescued)),
    ],
    ..Scenario::over_vm(
        "vm-luf-shared-write",
        "reclaimed lazily, written through another mapping",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_read(0, 1, file);
        k.map_file(1, 1, file);
        k.read(0);
        k.read(1);
        k.keep_table();
    } else {
        k.page_out(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write(1, 2);
        k.tell(0);
    } else {
        k.read(0);
        k.wait_for(0);
        assert_eq!(k.read(0), Some(2));
    }
}
