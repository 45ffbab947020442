//! CPU 1 loads a space while CPU 0, which alone runs it, unmaps two pages in one batch: the second one after the batch
//! has said that it owes a flush.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::engine(
        "switch-unmap-range",
        "a space's load against an unmap of two pages",
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
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_pages(0, 0, 2);
    } else {
        k.switch(0);
        k.read(1);
        k.read(1);
    }
}
