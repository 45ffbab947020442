//! Both CPUs run one space as tags run out. CPU 0 comes back to it, uses up all tags once more, comes back again and
//! unmaps a page that CPU 1, which has never switched, still reaches under the tag that it had from the start.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["RolloverTellsOneAlone"],
    on: On::Broadcast,
    must: &[(On::Scarce, Reach::Engine(Counter::Rollovers))],
    ..Scenario::engine(
        "rollover-twice",
        "two tag rollovers against unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        // As tags run out for the first time, this CPU runs the space, too.
        for space in [1, 2, 0, 3, 0, 1, 2, 0] {
            k.switch(space);
        }
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.read(0);
    }
}
