//! CPU 0 starts a flush and goes on, while CPU 1, which is to answer, goes offline.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["StarterNotTold"],
    must: &[(On::Every, Reach::Machine(Happening::Offline))],
    ..Scenario::engine(
        "started-offline",
        "a CPU goes offline that a flush was started for",
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
        if let Some(frame) = k.unmap_started(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.offline();
    }
}
