//! CPU 0 discards pages, CPU 1 writes to memory that it finds only once their frames are free, CPU 2 goes on
//! writing the old ones.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["30"],
    must: &[
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-allocate-flush",
        "allocation against a flush in flight",
        3,
        start,
        body,
    )
    .with_memory([8, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 3);
        k.write(0, 1);
        k.write(1, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.discard(0, 2),
        1 => {
            k.write(2, 2);
        }
        _ => {
            k.write(0, 3);
            k.write(1, 3);
        }
    }
}
