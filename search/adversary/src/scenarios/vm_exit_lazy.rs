//! CPU 0 ends a process whose root CPU 1, idle, may still have loaded; its tables are freed and used again.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::Call;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["25"],
    must: &[
        (On::Every, Reach::Machine(Happening::SpaceRetired)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::over_vm(
        "vm-exit-lazy",
        "the end of a process against a lazy CPU",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 1 {
        let process = k.spawn();
        k.enter(process);
        k.map(0, 1);
        k.write(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        while k.try_call(Call::Exit { process: 2 }).is_err() {
            k.pause();
        }
        k.map(0, 1);
        k.write(0, 2);
    } else {
        k.vm.leave();
        k.tell(0);
        k.wait_for(0);
        k.enter(1);
        k.read(0);
    }
}
