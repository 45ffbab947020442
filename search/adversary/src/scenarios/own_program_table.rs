//! CPU 0 frees a page table of the kernel's half, which the walker of CPU 1 knows; CPU 1 runs a program and is not to
//! be disturbed.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["ProgramLeftForTables"],
    must: &[(On::Every, Reach::Machine(Happening::TableFreed))],
    ..Scenario::engine(
        "own-program-table",
        "a table of the kernel's half is freed while a CPU runs a program undisturbed",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map_own(OWN_TAGGED, frame(1));
        k.map(0, 0, frame(2), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_own_table();
    } else {
        k.enter_user();
        k.read(0);
        k.enter_kernel();
        k.read_own(OWN);
    }
}
