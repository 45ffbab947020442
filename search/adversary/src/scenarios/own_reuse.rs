//! CPU 0 unmaps a range of the kernel without a flush, and gives its address out again; later it gives the frame to
//! a new owner. Meanwhile CPU 1, whose program's tag is flushed for other reasons, uses what is there now.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelDebtPaidByTag"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
        (On::Every, Reach::Machine(Happening::KernelAccess)),
    ],
    ..Scenario::engine(
        "own-reuse",
        "an address of the kernel is used again after a lazy unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map(0, 0, frame(2), true);
    }
    k.switch(0);
    if cpu == 1 {
        k.idle();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let (freed, stamp) = k.unmap_own_lazily(OWN);
        k.tell(0);
        k.wait_for(1);
        k.reuse_own(OWN, stamp, frame(1), 7);
        k.tell(2);
        if let Some(frame) = freed {
            k.claim(frame);
        }
    } else {
        k.wait_for(0);
        k.switch(0);
        k.flush_all(0);
        k.tell(1);
        k.wait_for(2);
        k.read_own(OWN);
    }
}
