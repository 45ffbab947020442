//! A page is on its way out; CPU 1 takes it back and writes it, CPU 2 still writes through the old entry.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmCopiesUnsettled"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-swap-in-write",
        "swap-in against page-out",
        3,
        start,
        body,
    )
    .with_memory([16, 0])
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
            k.page_out(0, 1);
        }
        1 => {
            k.write(0, 2);
            k.read(0);
        }
        _ => {
            k.write(0, 3);
        }
    }
}

fn after(k: &VmKernel<'_>) {
    let held = k.holds(1, 0);
    let fact = held == Some(2) || held == Some(3);
    k.must(Clause::C2, fact, "of two stores neither is left");
}
