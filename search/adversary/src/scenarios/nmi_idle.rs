//! CPU 1 comes back to a space that it had left alone, and an NMI handler wants to read user memory before
//! CPU 1 has flushed what CPU 0 unmapped meanwhile.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["ResumeLetsNmisIn"],
    nmis: 2,
    must: &[
        (On::Every, Reach::Machine(Happening::NmiAccess)),
        (On::Every, Reach::Machine(Happening::NmiRefused)),
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
        (On::Interrupts, Reach::Engine(Counter::SwitchBehind)),
    ],
    ..Scenario::engine(
        "nmi-idle",
        "an NMI as a lazy CPU comes back",
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
        k.idle();
        k.switch(0);
    }
}
