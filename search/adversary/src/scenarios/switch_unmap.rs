//! CPU 1 comes to a space, leaves it and comes back while CPU 0 unmaps a page of it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

/// The CPU that comes is met away, behind, up to date and there.
pub(super) const MUST: &[(On, Reach)] = &[
    (On::Every, Reach::Engine(Counter::Switches)),
    (On::Interrupts, Reach::Engine(Counter::SkippedNoTarget)),
    (On::OwnTags, Reach::Engine(Counter::SwitchBehind)),
    (On::OwnTags, Reach::Engine(Counter::SwitchKept)),
    (On::Interrupts, Reach::Engine(Counter::Sent)),
];

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["8"],
    finds: &[
        "SwitchPublishesLate",
        "SwitchIgnoresGeneration",
        "SwitchIgnoresBatch",
        "InterruptsStayOff",
        "SpaceReadEarly",
        "SpaceAnnouncesLate",
    ],
    must: MUST,
    ..Scenario::engine(
        "switch-unmap",
        "context switch against unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.switch(0);
    } else {
        k.switch(0);
        k.switch(1);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        come_and_go(k);
    }
}

/// Comes to the space, leaves it and comes back.
pub(super) fn come_and_go(k: &BareKernel<'_>) {
    k.switch(0);
    k.read(0);
    k.switch(1);
    k.switch(0);
    k.read(0);
}
