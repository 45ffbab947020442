//! CPU 1 comes online while CPU 0 unmaps a range of the kernel without a flush, and gives its frame to a new owner: what
//! CPU 1 flushes as it comes pays no debt that is taken meanwhile.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["ClockReadAfterFlush"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::Claimed)),
        (On::Every, Reach::Machine(Happening::Offline)),
    ],
    ..Scenario::engine(
        "own-online-debt",
        "a CPU comes online while a frame of the kernel is used again after a lazy unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
    } else {
        k.offline();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let (freed, _) = k.unmap_own_lazily(OWN);
        if let Some(frame) = freed {
            k.claim(frame);
        }
        k.tell(0);
    } else {
        k.online();
        k.wait_for(0);
        k.read_own(OWN);
    }
}
