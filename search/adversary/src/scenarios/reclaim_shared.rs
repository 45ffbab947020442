//! CPU 0 reclaims a page that two spaces map; CPU 1 goes from one to the other.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["1"],
    must: &[(On::Every, Reach::Engine(Counter::Requested))],
    ..Scenario::engine(
        "reclaim-shared",
        "one batch over two spaces",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(1, 0, frame(0), true);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.reclaim(&[0, 1], 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.switch(0);
        k.read(0);
    }
}
