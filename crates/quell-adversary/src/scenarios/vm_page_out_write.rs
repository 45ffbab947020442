//! CPU 0 pages a page out while CPU 1 writes it: what was written must come back.

use super::{On, Program, Scenario};
use crate::coverage::{Happening, Reach};
use crate::managed::{Managed, ManagedProgram};
use quell::mutant::Mutant;
use quell_contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["3"],
    finds: &[Mutant::VmWritesOutBeforeFlush],
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    program: Program::Managed(ManagedProgram {
        memory: [16, 0],
        start,
        body,
        after,
    }),
    ..Scenario::managed(
        "vm-page-out-write",
        "page-out against write",
        2,
        start,
        body,
    )
};

fn start(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.page_out(0, 1);
    } else {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}

fn after(k: &Managed<'_>) {
    let fact = k.holds(1, 0) == Some(2);
    k.must(
        Clause::C2,
        fact,
        "what was written before the page went out is lost",
    );
}
