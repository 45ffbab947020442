//! A file page is moved to another node without a flush: page 0 may still be read at its old place. CPU 0
//! writes the file; CPU 1 must read what was written once the call has returned.

use super::{On, Program, Scenario};
use crate::coverage::Reach;
use crate::managed::{Managed, ManagedProgram};
use quell::Counter;
use quell::mutant::Mutant;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["L2", "L3"],
    finds: &[Mutant::VmWritesShadowedPage],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
    ],
    program: Program::Managed(ManagedProgram {
        memory: [12, 4],
        start,
        body,
        after: |_| {},
    }),
    ..Scenario::managed(
        "vm-shadow-write",
        "moved lazily, the file written",
        2,
        start,
        body,
    )
};

fn start(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_read(0, 1, file);
        k.read(0);
        k.keep_table();
    } else {
        k.migrate(0, 1, 1);
    }
}

fn body(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.write_file(0, 0, 2);
        k.tell(0);
    } else {
        k.read(0);
        k.wait_for(0);
        assert_eq!(k.read(0), Some(2));
    }
}
