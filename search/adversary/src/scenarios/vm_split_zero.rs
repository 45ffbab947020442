//! Pages that were written have become a large one, of which no entry says that it was written. CPU 0 takes two out of it,
//! and takes memory that must be zero; CPU 1 stores to what is left.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;

const PAGES: u64 = 512;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmPiecesAreZero"],
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    one_in: 50,
    steps: 64_000,
    ..Scenario::over_vm(
        "vm-split-zero",
        "pieces of a large page are given up",
        2,
        start,
        body,
    )
    .with_memory([1040, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, PAGES);
        for page in 0..PAGES {
            k.write(page, 1);
        }
        assert!(k.collapse(0));
        k.map(PAGES, 2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in [0, 1] {
            k.unmap(page, 1);
        }
        for page in [0, 1] {
            k.read(PAGES + page);
        }
    } else {
        k.write(PAGES - 1, 2);
    }
}
