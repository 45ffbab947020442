//! CPU 1 pays in the background what CPU 0 has just begun to owe, claims the frame, and tells CPU 0, which still holds
//! the translation unless it was interrupted.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["LedgerReadRelaxed"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
        (On::Every, Reach::Engine(Counter::ClaimsFree)),
        (On::Every, Reach::Machine(Happening::Claimed)),
    ],
    ..Scenario::engine(
        "lazy-background",
        "a debt is paid in the background as it is taken",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), false);
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.reclaim_lazily(0, 0);
        k.wait_for(0);
        k.read(0);
    } else {
        k.engine.pay_all();
        k.claim(frame(0));
        k.tell(0);
    }
}
