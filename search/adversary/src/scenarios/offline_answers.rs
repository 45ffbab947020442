//! CPU 1 goes offline for good in the middle of a shootdown: no initiator may wait for it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["OfflineForgetsInbox"],
    must: &[
        (On::Every, Reach::Machine(Happening::Offline)),
        (On::Interrupts, Reach::Engine(Counter::SkippedOffline)),
    ],
    ..Scenario::engine(
        "offline-answers",
        "a CPU that goes offline answers first",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap(0, 0);
        k.tell(0);
    } else {
        k.offline();
        k.wait_for(0);
        k.online();
    }
}
