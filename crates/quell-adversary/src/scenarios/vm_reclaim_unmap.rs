//! CPU 0 reclaims a page: its entry is cleared and the flush comes later. CPU 1 unmaps the page in between,
//! finds nothing to flush, and must not return before the old entry is gone.

use super::{On, Program, Scenario};
use crate::coverage::{Happening, Reach};
use crate::managed::{Managed, ManagedProgram};
use quell::Counter;
use quell::mutant::Mutant;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["6", "19"],
    finds: &[Mutant::VmUnmapsUnsettled],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::CallReturned)),
    ],
    program: Program::Managed(ManagedProgram {
        memory: [8, 0],
        start,
        body,
        after: |_| {},
    }),
    ..Scenario::managed("vm-reclaim-unmap", "reclaim against unmap", 2, start, body)
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
        k.reclaim(1);
    } else {
        k.unmap(0, 1);
        k.read(0);
    }
}
