//! A file page is mapped to read and reclaimed without a flush. CPU 0 writes the file; CPU 1 must read what
//! was written once the call has returned.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L2"],
    finds: &["VmRefillsOwedSlot"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::FrameRescued)),
        (On::Every, Reach::Machine(Happening::Compared)),
    ],
    ..Scenario::over_vm(
        "vm-luf-file-write",
        "reclaimed lazily, the file written",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.keep_table();
    } else {
        k.page_out(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write_file(0, 0, 2);
        k.tell(0);
    } else {
        k.read(0);
        k.wait_for(0);
        assert_eq!(k.read(0), Some(2));
    }
}
