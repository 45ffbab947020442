//! CPU 0 unmaps a page of the kernel's half, does not wait, and replaces text; CPU 1, which may have fetched the old one,
//! finds both requests as one.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["TextLostInMerge"],
    must: &[
        (On::Every, Reach::Machine(Happening::TextSynchronized)),
        (On::Interrupts, Reach::Engine(Counter::Merged)),
    ],
    ..Scenario::engine(
        "own-text-merged",
        "text of the kernel is replaced while a flush of its mappings is under way",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map_own(OWN + 1, frame(1));
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.unmap_own_and_replace_text(OWN + 1, OWN, 7);
    } else {
        k.execute_own(OWN);
        k.execute_own(OWN);
    }
}
