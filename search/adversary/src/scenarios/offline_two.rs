//! CPU 1 goes offline while two initiators write to its inbox, and is shot at again when it is back.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    must: &[
        (On::Every, Reach::Machine(Happening::Offline)),
        (On::Interrupts, Reach::Engine(Counter::SkippedOffline)),
    ],
    ..Scenario::engine(
        "offline-two",
        "an inbox that closes while it is written",
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
        1 => {
            k.offline();
            k.online();
            k.switch(0);
            k.read(1);
        }
        _ => {
            k.unmap(0, 1);
        }
    }
}
