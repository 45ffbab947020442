//! CPU 1 goes offline and comes back while CPU 0 shoots at it.

use crate::bare_kernel::{BareKernel, frame};
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
        "offline-shootdown",
        "offline and online against shootdown",
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
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.offline();
        k.online();
        k.switch(0);
        k.read(0);
    }
}
