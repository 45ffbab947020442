//! Two CPUs shoot at each other, both with interrupts off.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::{Counter, Hardware};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["32"],
    finds: &["WaiterSkipsInbox"],
    must: &[(On::Interrupts, Reach::Engine(Counter::ServedEarly))],
    ..Scenario::engine(
        "cross-shootdown",
        "two waiters with interrupts off",
        2,
        two_pages,
        body,
    )
};

fn body(k: &BareKernel<'_>, cpu: usize) {
    let were_on = k.hw.mask_interrupts();
    k.unmap(0, cpu as u64);
    k.hw.restore_interrupts(were_on);
    k.read(0);
    k.read(1);
}
