//! CPU 0 splits a large page while CPU 1 takes hold of it, to move it, and finds no room for all of it.

use super::{On, Program, Scenario};
use crate::coverage::{Happening, Reach};
use crate::managed::{FIRST_PROCESS, Managed, ManagedProgram};
use quell::mutant::Mutant;
use quell_contract::Clause;

const PAGES: u64 = 512;
/// The page that CPU 0 drops, for which the large one is split.
const DROPPED: u64 = 5;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &[Mutant::VmSplitsUnlocked],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 50,
    steps: 16_000,
    program: Program::Managed(ManagedProgram {
        // One large block, in fast memory.
        memory: [1040, 8],
        start,
        body,
        after,
    }),
    ..Scenario::managed(
        "vm-split-migrate",
        "split against migration",
        2,
        start,
        body,
    )
};

fn start(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(0, PAGES);
        k.write(0, 1);
    }
}

fn body(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(DROPPED, 1);
        k.write(0, 2);
    } else {
        k.migrate(0, 1, 1);
    }
}

fn after(k: &Managed<'_>) {
    k.must(
        Clause::C2,
        k.holds(FIRST_PROCESS, 0) == Some(2),
        "what was written is lost in the split",
    );
}
