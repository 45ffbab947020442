//! CPU 0 takes one page out of a block that CPU 1 uses. A TLB may fill that page from the entry of the other, as long as that one says
//! that the block stands.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Blocks,
    finds: &["BlockBrokenInPart"],
    must: &[
        (On::Every, Reach::Machine(Happening::StaleUse)),
        (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
    ],
    ..Scenario::engine(
        "block-break",
        "a block of pages is taken apart (contiguous entries)",
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
        if let Some(frame) = k.unmap_from_block(0, 5) {
            k.give_away(frame);
        }
        k.read(4);
    } else {
        k.write(5, 1);
        k.read(4);
        k.read(5);
    }
}
