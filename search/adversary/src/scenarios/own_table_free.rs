//! CPU 0 frees a page table of the kernel's half; CPU 1 is idle.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelSkipsIdle"],
    must: &[(On::Every, Reach::Machine(Happening::TableFreed))],
    ..Scenario::engine(
        "own-table-free",
        "a table of the kernel's half is freed while a CPU is idle",
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
    }
    k.switch(0);
    if cpu == 1 {
        k.idle();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_own_table();
    } else {
        k.read_own(OWN);
        k.switch(0);
        k.switch(1);
    }
}
