//! CPU 1 has left its root to be idle for long, and comes back, twice; CPU 0 unmaps a page and frees a table, and
//! interrupts it for neither while it is away.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    must: &[
        (On::Every, Reach::Machine(Happening::TableFreed)),
        (On::Interrupts, Reach::Engine(Counter::SkippedNoTarget)),
    ],
    ..Scenario::engine(
        "idle-leave",
        "a CPU leaves its root of its own accord while tables are freed",
        2,
        two_pages,
        body,
    )
};

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 1) {
            k.give_away(frame);
        }
        k.free_table(0, 0);
    } else {
        k.leave();
        k.resume(0);
        k.read(1);
        k.idle();
        k.resume(0);
        k.read(0);
        k.leave();
        k.switch(0);
        k.read(0);
    }
}
