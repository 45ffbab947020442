//! CPU 0 forks; CPU 1 enters the child as soon as there is one and writes a shared page; CPU 2, still in
//! the parent, writes through an entry whose write protection may not have been flushed.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::Call;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["21"],
    finds: &["VmForkReturnsUnflushed"],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::over_vm("vm-fork-write", "fork against write", 3, start, body)
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
            while k.try_call(Call::Enter { process: 2 }).is_err() {
                k.pause();
            }
            k.write(0, 2);
            k.read(0);
        }
        _ => {
            k.write(0, 3);
        }
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(2, 0) == Some(2),
        "the child's page has changed",
    );
    k.must(
        Clause::C2,
        k.holds(1, 0) == Some(3),
        "the parent's store is lost",
    );
}
