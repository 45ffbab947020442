//! CPU 0 zeroes a frame and maps it; CPU 1 uses the page as soon as it sees the entry. On machines whose
//! stores overtake each other the entry must not be seen before the zeroes.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMapsBeforeContent"],
    must: &[
        (On::Every, Reach::Machine(Happening::Zeroed)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::engine(
        "late-content",
        "mapping a page against the zeroes in it",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.fill(frame(0), 0xdead);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_zeroes(0, 0, frame(0));
        k.read(0);
    } else {
        k.read(0);
        k.write(0, 1);
        k.read(0);
    }
}
