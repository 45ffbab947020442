//! After a fork, CPU 0 writes a page that both processes share; CPU 1 reads it twice while CPU 2 writes it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMapsCopyBeforeFlush"],
    must: &[
        (On::Every, Reach::Machine(Happening::Captured)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-copy-on-write-read",
        "copy on write against read",
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
        k.fork();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.write(0, 2);
        }
        1 => {
            k.write(0, 3);
        }
        _ => {
            k.read(0);
            k.read(0);
        }
    }
}
