//! CPUs 0 and 2 unmap different pages, flush everything, and share the flushes; CPU 1 uses both pages.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[(On::Every, Reach::Engine(Counter::Joined))],
    ..Scenario::engine(
        "joined-unmap",
        "two tasks share a flush of everything",
        3,
        two_pages,
        body,
    )
};

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.unmap_joined(0, 0) {
                k.give_away(frame);
            }
        }
        1 => {
            k.read(1);
            k.read(0);
            k.read(1);
            k.read(0);
            k.read(1);
        }
        _ => {
            if let Some(frame) = k.unmap_joined(0, 1) {
                k.give_away(frame);
            }
        }
    }
}
