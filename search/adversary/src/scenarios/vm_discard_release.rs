//! CPU 0 discards a page of which lazy reclaim has left a marker, and has not flushed yet. Meanwhile the frame is
//! claimed, used, freed, and read back for the same page by CPU 1: what CPU 0 gives up after its flush is the old
//! mapping.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

const PAGE: u64 = 1;
/// Anonymous memory, for which frames are claimed.
const OTHER: u64 = 8;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmUnlistsNextLife"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    ..Scenario::over_vm(
        "vm-discard-release",
        "discard of a marker against the frame's next life",
        2,
        start,
        body,
    )
    // So few that the frame that was freed last is used again.
    .with_memory([6, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(4, 1);
        k.map_file(PAGE, 2, file);
        k.map(OTHER, 4);
        k.read(PAGE);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(PAGE, 2);
    } else {
        k.page_out(PAGE, 1);
        k.write(OTHER, 2);
        k.write(OTHER + 1, 3);
        k.discard(OTHER, 4);
        k.read(PAGE);
    }
}
