//! CPU 0 cuts a file while CPU 1 lengthens it by a write: the page that the write adds is cut off, or the file is as
//! long as it says. The manager's records show a page that is neither.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmReadsLengthApart"],
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    ..Scenario::over_vm(
        "vm-truncate-write",
        "truncation against a write beyond the end",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.create_clean(1, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.truncate(0, 0);
    } else {
        k.write_file(0, 1, 7);
    }
}
