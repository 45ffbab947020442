//! CPU 1 reclaims a page while CPU 0 forks: the child shares the page on its way out and copies it, before
//! CPU 1 has flushed the entry through which CPU 2 still writes for the parent.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21"],
    finds: &["VmForksUnsettled"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Interrupts, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-reclaim-fork-copy",
        "reclaim against fork and copy",
        3,
        start,
        body,
    )
    .with_memory([24, 0])
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
            let child = k.fork();
            k.enter(child);
            k.write(0, 2);
        }
        1 => {
            k.reclaim(1);
        }
        _ => {
            k.write(0, 3);
        }
    }
}
