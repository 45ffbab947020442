//! CPU 0 reclaims a page that CPU 1 is writing while CPU 2 forks: the child must see what was written
//! before the fork, and nothing of what comes later.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21"],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::over_vm(
        "vm-reclaim-fork",
        "reclaim against fork and write",
        3,
        start,
        body,
    )
    .with_memory([14, 0])
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
            k.reclaim(1);
        }
        1 => {
            k.write(0, 2);
        }
        _ => {
            let child = k.fork();
            k.enter(child);
            let seen = k.read(0);
            k.enter(1);
            k.read(0);
            k.enter(child);
            // Whatever the parent does, the child's copy is its own.
            assert_eq!(k.read(0), seen);
        }
    }
}
