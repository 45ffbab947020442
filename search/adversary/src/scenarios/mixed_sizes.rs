//! CPU 0 unmaps two base pages and a large page at once; CPU 1 uses the second base page and the middle
//! of the large page. An invalidation in strides of the wrong size leaves one of them behind.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

/// Where the large page begins.
const LARGE: u64 = 1024;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["BasePagesInLargeStrides", "LargePageAsBasePage"],
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
    ],
    ..Scenario::engine(
        "mixed-sizes",
        "base pages and a large page in one flush",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..2 {
            k.map(0, page, frame(page), true);
        }
        k.map_large(0, LARGE, frame(2), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_mixed(0, 0, LARGE);
    } else {
        k.read(1);
        k.read(LARGE + 1);
    }
}
