//! CPU 0 runs more spaces than there are tags, each with its own frame behind the same page.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["13"],
    finds: &[
        "TagTakenUnflushed",
        "RolloverSkipsFlush",
        "RolloverForgetsReserved",
    ],
    must: &[
        (On::OwnTags, Reach::Engine(Counter::SwitchTagTaken)),
        (On::Scarce, Reach::Engine(Counter::Rollovers)),
    ],
    ..Scenario::engine("tag-reuse", "tags are lent and taken over", 1, start, body)
};

fn start(k: &BareKernel<'_>, _cpu: usize) {
    for space in 0..6 {
        k.map(space, 0, frame(space as u64), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, _cpu: usize) {
    for space in [1, 2, 3, 4, 5, 0, 1] {
        k.switch(space);
        k.read(0);
    }
}
