//! An NMI handler on CPU 1 wants to read user memory, at any moment of a shootdown.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["NmiGuardAlwaysAllows"],
    nmis: 2,
    must: &[
        (On::Every, Reach::Machine(Happening::NmiAccess)),
        (On::Interrupts, Reach::Machine(Happening::NmiRefused)),
        (On::Interrupts, Reach::Engine(Counter::WaitedReceipt)),
    ],
    ..Scenario::engine(
        "nmi-unmap",
        "an NMI between receipt and flush",
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
    }
}
