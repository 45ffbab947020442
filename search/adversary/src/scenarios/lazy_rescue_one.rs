//! A page that two spaces map is taken away lazily, taken back in one of them, and then taken away for good. CPU 1 runs
//! the other, where nothing was mapped again: its stale entry is still in use, and the residue, which the rescue has
//! cleared, says nothing of it. The kernel goes on treating the place as a mapping of the frame.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["VmIgnoresMarker"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::Rescued)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::engine(
        "lazy-rescue-one",
        "a frame that is rescued at one of its places is taken away",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
        k.map(1, 0, frame(0), false);
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(taken) = k.reclaim_lazily_from(&[0, 1], 0) {
            k.rescue(0, 0, taken);
        }
        if let Some(frame) = k.reclaim_rescued(0, 1, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.read(0);
    }
}
