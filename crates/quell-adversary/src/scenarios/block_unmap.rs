//! CPU 0 unmaps a block of pages, which CPU 1's TLB may have kept as one entry or as many. An invalidation of one page need not take
//! the others.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Blocks,
    finds: &["BlockReportedAsPage"],
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
    ],
    ..Scenario::engine(
        "block-unmap",
        "a block of pages goes (contiguous entries)",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_block(0, 4, frame(0));
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_block(0, 4);
    } else {
        k.read(4);
        k.read(5);
    }
}
