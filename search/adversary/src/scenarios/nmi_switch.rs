//! An NMI handler on CPU 1 wants to read user memory while the CPU is between two spaces.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["NmiGuardAlwaysAllows"],
    nmis: 2,
    must: &[
        (On::Every, Reach::Machine(Happening::NmiAccess)),
        (On::Every, Reach::Machine(Happening::NmiRefused)),
    ],
    ..Scenario::engine(
        "nmi-switch",
        "an NMI in the middle of a switch",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(1, 0, frame(1), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.switch(1);
        k.idle();
        k.switch(0);
    }
}
