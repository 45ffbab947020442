//! CPU 0, the only one that has a space loaded, unmaps a page of it; an NMI handler there reads the page at any moment, and
//! CPU 1 relies on the cleared entry.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["DebtEndsBeforeFlush"],
    nmis: 1,
    must: &[
        (On::Every, Reach::Machine(Happening::NmiAccess)),
        (On::Interrupts, Reach::Engine(Counter::SkippedNoTarget)),
    ],
    ..Scenario::engine(
        "nmi-alone",
        "an NMI on the only CPU that has to flush, against a second actor",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read(0);
    }
    k.unmap(0, 0);
}
