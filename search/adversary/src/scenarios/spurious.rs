//! Interrupts that no CPU sent come on both CPUs during an unmap.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["32"],
    finds: &["SpuriousAcknowledges"],
    spurious: 2,
    must: &[
        (On::Every, Reach::Machine(Happening::Spurious)),
        (On::Interrupts, Reach::Engine(Counter::Sent)),
    ],
    ..Scenario::engine(
        "spurious",
        "spurious interrupts acknowledge nothing",
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
        k.read(0);
    }
}
