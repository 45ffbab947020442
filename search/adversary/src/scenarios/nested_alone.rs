//! CPU 0 unmaps a page of a space that it has to itself, and is preempted by a thread of another space,
//! which CPU 1 changes: a flush that needs no other CPU must not take the other space's slot for its own.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["LoadedSpaceStale"],
    must: &[
        (On::Every, Reach::Machine(Happening::Preempted)),
        (On::Interrupts, Reach::Engine(Counter::SkippedNoTarget)),
    ],
    ..Scenario::engine(
        "nested-alone",
        "a thread of another space preempts a flush that needs no other CPU",
        2,
        start,
        body,
    )
    .preempted_by(|k, cpu| {
        if cpu == 0 {
            k.switch(1);
            k.read(1);
        }
    })
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(1, 1, frame(1), true);
        k.switch(1);
        k.switch(0);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
        k.switch(1);
        k.read(1);
    } else if let Some(frame) = k.unmap(1, 1) {
        k.give_away(frame);
    }
}
