//! CPU 1 comes back from idle to a space that was flushed while it was away, and is flushed again as it comes: CPU 0
//! unmaps two pages of it, one after the other.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["NotesLaterGeneration"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
        (On::Interrupts, Reach::Engine(Counter::SwitchBehind)),
        (On::Interrupts, Reach::Engine(Counter::IgnoredGeneration)),
    ],
    ..Scenario::engine(
        "idle-return",
        "a lazy CPU that has missed one unmap, against the next",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(0, 1, frame(1), true);
        k.switch(0);
    } else {
        k.switch(0);
        k.idle();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in [0, 1] {
            if let Some(frame) = k.unmap(0, page) {
                k.give_away(frame);
            }
        }
    } else {
        k.switch(0);
        k.read(1);
        k.read(1);
    }
}
