//! CPU 0 moves a file page: until its flush the old place is still in use. CPU 1 truncates the file, finds
//! the page at the new place and frees it; CPU 2 uses the old address. CPU 1 must not look for the page
//! at the old place alone, either.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell::Counter;
use quell_vm::contract::Clause;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["1"],
    finds: &[
        "VmTruncatesUnsettled",
        "VmRemapsUnlocked",
        "VmUnlinksBeforeFlush",
    ],
    must: &[
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::over_vm(
        "vm-remap-truncate",
        "remap against truncation",
        3,
        start,
        body,
    )
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create(1, 1);
        k.map_file(0, 1, file);
        k.write(0, 1);
        k.create(1, 0);
        k.keep_table();
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.remap(0, 1, 2),
        1 => {
            k.truncate(0, 0);
            k.write_file(1, 0, 5);
            k.tell(0);
        }
        _ => {
            k.write(0, 2);
            k.wait_for(0);
            k.write(0, 3);
        }
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C3,
        k.holds(FIRST_PROCESS, 2).is_none(),
        "a page beyond the end of the file is still mapped",
    );
}
