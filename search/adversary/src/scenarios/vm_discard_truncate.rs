//! CPU 0 drops a file page from its space: its flush is still to come. CPU 1 cuts the file and finds the mapping
//! cleared; when it has returned, CPU 2 must not read beyond the end of the file, though the frame is
//! no other owner's yet.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["1"],
    finds: &["VmTruncatesUnsettled"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    ..Scenario::over_vm(
        "vm-discard-truncate",
        "discard against truncation",
        3,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file(0, 1, file);
        k.keep_table();
        k.read(0);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.discard(0, 1),
        1 => {
            k.truncate(0, 0);
            k.tell(0);
        }
        _ => {
            k.read(0);
            k.wait_for(0);
            k.read(0);
        }
    }
}
