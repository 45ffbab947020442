//! A file page was moved to another node without a flush, used there, and moved back in the same way: page 0 may still
//! be read at the place between. CPU 0 writes the file; CPU 1 must read what was written once the call has returned.

use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
    ],
    ..Scenario::over_vm(
        "vm-shadow-twice",
        "moved lazily twice, the file written",
        2,
        start,
        body,
    )
    .with_memory([12, 4])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.keep_table();
    } else {
        for node in [1, 0] {
            k.migrate(0, 1, node);
            if node == 1 {
                k.read(0);
            }
        }
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write_file(0, 0, 2);
        k.tell(0);
    } else {
        k.wait_for(0);
        assert_eq!(k.read(0), Some(2));
    }
}
