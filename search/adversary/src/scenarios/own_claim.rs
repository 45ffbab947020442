//! CPU 0 unmaps a range of the kernel without a flush, and its frame gets a new owner. CPU 1 is idle; what it has of
//! the address shows once that is used again.

use crate::bare_kernel::own_half::{OWN, OWN_TAGGED};
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["ClaimSkipsDebt"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByClaim)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "own-claim",
        "a frame of a kernel range that was unmapped lazily gets a new owner",
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
        let freed = [OWN, OWN_TAGGED].map(|page| k.unmap_own_lazily(page).0);
        for frame in freed.into_iter().flatten() {
            k.claim(frame);
        }
        k.tell(0);
    } else {
        k.wait_for(0);
        // Not lawful: but whatever it finds, it is no frame that has a new owner.
        k.read_own(OWN);
        k.read_own(OWN_TAGGED);
    }
}
