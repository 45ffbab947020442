//! CPU 0 writes to a page of a file that its process maps privately, and finds the entry empty. While it copies, CPU 1
//! reads the page itself there, and CPU 2 takes it out again and has not flushed: the entry is as empty as before.
//!
//! Reclaim would leave a page alone that another part of the kernel holds. It takes a marker of another mapping for a
//! reference.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

/// Where the page is mapped shared, and where privately.
const SHARED: u64 = 1;
const PRIVATE: u64 = 2;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmFillsUnsettled"],
    must: &[(On::Every, Reach::Machine(Happening::Fault))],
    ..Scenario::over_vm(
        "vm-copy-refill",
        "private copy against reclaim of the page itself",
        3,
        start,
        body,
    )
    .with_memory([24, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_read(SHARED, 1, file);
        k.map_file_private(PRIVATE, 1, file);
        k.read(SHARED);
        k.page_out(SHARED, 1);
        k.write_file(file, 0, 2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.write(PRIVATE, 3);
        }
        1 => {
            for _ in 0..6 {
                k.read(PRIVATE);
            }
        }
        _ => {
            for _ in 0..2 {
                k.page_out(PRIVATE, 1);
            }
        }
    }
}
