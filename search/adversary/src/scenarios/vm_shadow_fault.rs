//! A file page is moved to another node without a flush; CPU 0 faults on it, which writes the emptied entry
//! again with another frame; CPU 1 reads; then CPU 0 unmaps it.

use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L1"],
    finds: &["VmWritesShadowedPage"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByRefill)),
    ],
    ..Scenario::over_vm(
        "vm-shadow-fault",
        "moved lazily, the entry written again",
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
        k.migrate(0, 1, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read(0);
        k.write_file(0, 0, 2);
    } else {
        k.read(0);
        k.read(0);
    }
}
