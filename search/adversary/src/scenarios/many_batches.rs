//! More batches of one space are outstanding than its count has room for, begun before the run and
//! during it, while a CPU loads the space again and a second actor relies on what was cleared.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["BatchesCountedWithoutEnd"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    ..Scenario::engine(
        "many-batches",
        "more outstanding batches than are counted",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..5 {
            k.map(0, page, frame(page), true);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.nested(0, 0, 4);
    } else {
        k.read(0);
        k.read(3);
        k.unmap(0, 0);
        k.unmap(0, 3);
        k.read(0);
        k.read(3);
    }
}
