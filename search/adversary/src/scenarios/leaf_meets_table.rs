//! CPU 0 unmaps a page while CPU 2 frees a table: in CPU 1's inbox the one meets the other.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["MergeOverwrites", "TakeIgnoresLock", "GapNotEscalated"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::Merged)),
        (On::Every, Reach::Machine(Happening::TableFreed)),
    ],
    ..Scenario::engine(
        "leaf-meets-table",
        "a leaf flush merged with a table flush",
        3,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.map(0, SECOND, frame(1), true);
        k.link(0, SECOND);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.unmap(0, 0);
        }
        1 => {
            k.read(0);
            k.read(SECOND);
        }
        _ => k.free_table(0, SECOND),
    }
}
