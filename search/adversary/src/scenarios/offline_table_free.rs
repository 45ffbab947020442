//! CPU 1 goes offline while CPU 0 unlinks a page-table page and frees it: CPU 1's walker may be on its way through as
//! long as the root is loaded there, whatever else the CPU has left.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Every, Reach::Machine(Happening::Offline)),
    ],
    ..Scenario::engine(
        "offline-table-free",
        "freeing a table while a CPU goes offline",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, SECOND, frame(1), true);
        k.link(0, SECOND);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.free_table(0, SECOND);
    } else {
        k.read(SECOND);
        k.offline();
    }
}
