//! CPU 0 takes the right to execute a page away, and no other right; CPU 1 goes on fetching from it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmExecutionUnflushed"],
    must: &[
        (On::Every, Reach::Machine(Happening::CallReturned)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::over_vm(
        "vm-execute-sync",
        "mprotect of code against instruction fetch",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_code(0, 1);
        k.write(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.forbid_execution(0, 1);
        k.fetch(0);
    } else {
        k.fetch(0);
        k.fetch(0);
    }
}
