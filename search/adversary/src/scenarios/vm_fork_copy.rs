//! CPU 0 forks. CPU 1, in the parent, finds the page write-protected and copies it, while CPU 2 may still
//! write it through an entry whose write protection was not flushed.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21"],
    finds: &["VmCopiesUnsettled"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::over_vm(
        "vm-fork-copy",
        "fork against a copy in the parent",
        3,
        start,
        body,
    )
    .with_memory([24, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.fork();
        }
        1 => {
            k.write(0, 2);
        }
        _ => {
            k.write(0, 3);
            k.write(0, 4);
        }
    }
}

fn after(k: &VmKernel<'_>) {
    let held = k.holds(FIRST_PROCESS, 0);
    let fact = held == Some(2) || held == Some(4);
    k.must(Clause::C2, fact, "the last store of either CPU is lost");
}
