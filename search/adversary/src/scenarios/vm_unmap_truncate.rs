//! CPU 0 unmaps a file page and its flush is still to come; CPU 1 truncates the file and gets the frame for
//! something else; CPU 2 uses the old address.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["7"],
    finds: &["VmFreesBeforeFlush"],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-unmap-truncate",
        "unmap against truncation",
        3,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create(1, 1);
        k.map_file(0, 1, file);
        k.write(0, 1);
        k.create(1, 0);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.unmap(0, 1),
        1 => {
            k.truncate(0, 0);
            k.write_file(1, 0, 5);
            k.tell(0);
        }
        _ => {
            k.write(0, 2);
            k.wait_for(0);
            k.write(0, 3);
        }
    }
}
