//! CPU 0 unmaps all that a leaf table maps, so that the table is freed; CPU 1 goes on walking it.

use super::{On, Scenario};
use crate::coverage::{Happening, Reach};
use crate::managed::Managed;
use quell::Counter;
use quell::mutant::Mutant;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["10", "11"],
    finds: &[
        Mutant::VmFreesTableBeforeFlush,
        Mutant::VmTableFlushLeafOnly,
    ],
    must: &[
        (On::Every, Reach::Engine(Counter::Requested)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::managed(
        "vm-table-free",
        "a table page is freed against a walk",
        2,
        start,
        body,
    )
};

fn start(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
    }
}

fn body(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 1);
        k.map(0, 1);
        k.write(0, 3);
    } else {
        k.write(0, 2);
        k.read(0);
    }
}
