//! CPU 0 frees a page that it has written, goes idle and zeroes free memory; CPU 1 takes memory meanwhile.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &[
        "ZeroSkipsTail",
        "ZeroSkipsFaultingPage",
        "VmKeepsZeroFlag",
        "VmSkipsZeroing",
    ],
    must: &[
        (On::Every, Reach::Machine(Happening::Zeroed)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm(
        "vm-zero-ahead",
        "zeroing ahead against faults",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.map(1, 2);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 1);
        k.idle();
        k.read(1);
    } else {
        k.write(2, 2);
        k.read(1);
    }
}
