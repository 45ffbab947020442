//! CPUs 0 and 2 unmap different pages and meet in the inbox of CPU 1.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["33"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::Merged)),
        (On::Interrupts, Reach::Engine(Counter::EscalatedContention)),
        (On::Interrupts, Reach::Engine(Counter::IgnoredGeneration)),
        (On::Interrupts, Reach::Engine(Counter::EscalatedGap)),
        (On::Interrupts, Reach::Engine(Counter::ServedEarly)),
    ],
    ..Scenario::engine(
        "two-initiators",
        "two initiators, one target",
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
            k.read(0);
            k.read(1);
            k.read(0);
        }
        _ => {
            k.unmap(0, 1);
        }
    }
}
