//! CPU 0 takes away from CPU 1 a block of pages, or one page of it. CPU 1's TLB may have kept the block as one entry or
//! as many: an invalidation of one page need not take the others; and it may fill a page that has gone from the entry
//! of another, as long as that one says that the block stands.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const UNMAP: Scenario = Scenario {
    finds: &["BlockReportedAsPage"],
    ..over_a_block(
        "block-unmap",
        "a block of pages goes (contiguous entries)",
        |k, cpu| {
            if cpu == 0 {
                k.unmap_block(0, 4);
            } else {
                k.read(4);
                k.read(5);
            }
        },
    )
};

pub(super) const BREAK: Scenario = Scenario {
    finds: &["BlockBrokenInPart"],
    ..over_a_block(
        "block-break",
        "a block of pages is taken apart (contiguous entries)",
        |k, cpu| {
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
        },
    )
};

/// A block is mapped, and both CPUs run its space.
const fn over_a_block(
    name: &'static str,
    about: &'static str,
    body: fn(&BareKernel<'_>, usize),
) -> Scenario<'static> {
    Scenario {
        on: On::Blocks,
        must: &[
            (On::Every, Reach::Machine(Happening::StaleUse)),
            (On::Interrupts, Reach::Engine(Counter::FlushedRanges)),
        ],
        ..Scenario::engine(
            name,
            about,
            2,
            |k, cpu| {
                if cpu == 0 {
                    k.map_block(0, 4, frame(0));
                }
                k.switch(0);
            },
            body,
        )
    }
}
