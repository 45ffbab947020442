//! CPU 0 takes away a range that is too long to flush page by page.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["35"],
    finds: &["WholeTagStaysLocal"],
    must: &[
        (On::Every, Reach::Engine(Counter::EscalatedLength)),
        (On::Interrupts, Reach::Engine(Counter::FlushedFull)),
    ],
    ..Scenario::engine("long-range", "a range becomes a whole tag", 2, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..5 {
            k.map(0, page, frame(page), true);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_range(0, 0, 5);
        k.read(2);
    } else {
        k.write(0, 1);
        k.read(4);
    }
}
