//! File 0 is mapped to read and reclaimed without a flush. CPU 0 maps file 1 over it; CPU 1 must not read
//! file 0 any more once the call has returned.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L1"],
    finds: &["VmIgnoresMarker", "VmRewritesOwedEntry"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-luf-map-fixed",
        "reclaimed lazily, another file mapped over it",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let one = k.create_clean(1, 1);
        k.map_file_read(0, 1, one);
        k.create_clean(1, 2);
        k.read(0);
        k.keep_table();
    } else {
        k.page_out(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_file_read(0, 1, 1);
        assert_eq!(k.read(0), Some(2));
    } else {
        k.read(0);
        k.read(0);
    }
}
