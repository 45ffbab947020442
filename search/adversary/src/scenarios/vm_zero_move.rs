//! A page was moved into a frame that had been zeroed ahead. CPU 0 gives the page up, and takes memory that must be zero;
//! CPU 1 takes some, too.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMovesIntoZeros"],
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    ..Scenario::over_vm(
        "vm-zero-move",
        "a page that was moved into zeros is given up",
        2,
        start,
        body,
    )
    .with_memory([12, 4])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.migrate(0, 1, 1);
        // Zeroes ahead.
        k.idle();
        k.migrate(0, 1, 0);
        k.map(1, 2);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 1);
        k.truncate(0, 0);
        k.read(1);
    } else {
        k.read(2);
    }
}
