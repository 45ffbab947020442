//! CPU 0 frees a page table of the kernel's half, all of whose entries are global; CPU 1 changes to another space
//! meanwhile, and back.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelTablesKeptUnderTags"],
    must: &[(On::Every, Reach::Machine(Happening::TableFreed))],
    ..Scenario::engine(
        "own-table-switch",
        "a table of the kernel's half is freed while a CPU switches",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_own_table();
    } else {
        k.read_own(OWN);
        k.switch(1);
        k.switch(0);
        k.read_own(OWN);
    }
}
