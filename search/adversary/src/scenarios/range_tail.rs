//! CPU 0 unmaps two pages at once; CPU 1 uses the second.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["17", "36"],
    finds: &["RangeLosesTail"],
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
    ],
    ..Scenario::engine("range-tail", "the end of a range", 2, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..2 {
            k.map(0, page, frame(page), true);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_range(0, 0, 2);
    } else {
        k.write(1, 1);
        k.read(1);
    }
}
