//! A page of a file was reclaimed without a flush; its frame has become a page of another file, and was reclaimed without a
//! flush again. CPU 0 reads the first file.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmRescuesOtherPage"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm(
        "vm-rescue-other",
        "rescue of what has become another file's page",
        2,
        start,
        body,
    )
    .with_memory([7, 0])
};

/// How long the other file is.
const PAGES: u64 = 3;

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.page_out(0, 1);
        // Nothing else is free for the last.
        let other = k.create_clean(PAGES, 2);
        k.map_file_read(1, PAGES, other);
        for page in 1..=PAGES {
            k.read(page);
        }
        k.page_out(1, PAGES);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_file(0, 0);
        k.read(0);
    } else {
        k.read(1);
    }
}
