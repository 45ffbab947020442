//! CPU 0 stores to a private mapping of a file's page, which copies it; CPU 1 reclaims the page meanwhile, and gets its frame
//! for something else.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmHoldsAfterUnlock"],
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    ..Scenario::over_vm(
        "vm-private-reclaim",
        "a private copy against reclaim of its original",
        2,
        start,
        body,
    )
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_private(0, 1, file);
        k.map_file_read(1, 1, file);
        k.read(1);
        k.map(2, 1);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.write(0, 3);
        k.read(0);
    } else {
        k.page_out(1, 1);
        k.write(2, 9);
    }
}
