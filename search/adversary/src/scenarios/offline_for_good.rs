//! CPU 1 goes offline for good while two initiators write to its inbox: what the one counts after the
//! other was answered stays without an answer.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["WaitsForClosedInbox"],
    must: &[
        (On::Every, Reach::Machine(Happening::Offline)),
        (On::Interrupts, Reach::Engine(Counter::SkippedOffline)),
    ],
    ..Scenario::engine(
        "offline-for-good",
        "an inbox that closes while it is written, and stays closed",
        3,
        two_pages,
        body,
    )
};

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.unmap(0, 0);
        }
        1 => k.offline(),
        _ => {
            k.unmap(0, 1);
        }
    }
}
