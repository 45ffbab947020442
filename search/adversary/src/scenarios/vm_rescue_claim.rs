//! A file page was reclaimed without a flush. CPU 0 wants it back, CPU 1 needs its frame; CPU 2 reads
//! through the old entry.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::FrameRescued)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
    ],
    ..Scenario::over_vm("vm-rescue-claim", "rescue against claim", 3, start, body)
        .with_memory([7, 0])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.map(1, 3);
    } else if cpu == 1 {
        k.page_out(0, 1);
        // Nothing else is free.
        k.read(1);
        k.read(2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            assert_eq!(k.read_file(0, 0), Some(1));
        }
        1 => {
            k.write(3, 7);
        }
        _ => {
            k.read(0);
        }
    }
}
