//! A page was only read. CPU 1 stores to it while CPU 0 takes it away, and hands its frame out as memory known to be zero:
//! what CPU 1's walker records in the entry must not be lost. In the second program CPU 0 takes the right to write away
//! first.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const DISCARD: Scenario = Scenario {
    finds: &["VmReplacesInTwoSteps"],
    must: MUST,
    ..Scenario::over_vm(
        "vm-discard-store",
        "a discard against the first store",
        2,
        start,
        |k, cpu| body(k, cpu, false),
    )
};

pub(super) const PROTECT: Scenario = Scenario {
    finds: &["VmChangesInTwoSteps"],
    must: MUST,
    ..Scenario::over_vm(
        "vm-protect-store",
        "a protection and a discard against the first store",
        2,
        start,
        |k, cpu| body(k, cpu, true),
    )
};

const MUST: &[(On, Reach)] = &[
    (On::Every, Reach::Machine(Happening::FrameReused)),
    (On::Every, Reach::Machine(Happening::CallReturned)),
];

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 2);
        k.read(0);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize, protect: bool) {
    if cpu == 0 {
        if protect {
            k.protect(0, 1);
        }
        k.discard(0, 1);
        k.read(1);
    } else {
        k.write(0, 7);
    }
}
