//! CPU 1 goes idle and comes back to the same space while CPU 0 unmaps a page of it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["34"],
    finds: &["LazyResumesUnchecked", "RelaxedLeaveLazy"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::SkippedLazy)),
        (On::Interrupts, Reach::Engine(Counter::SwitchBehind)),
    ],
    ..Scenario::engine("idle-unmap", "a lazy CPU against unmap", 2, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.idle();
        k.switch(0);
        k.read(0);
    }
}
