//! More debts are taken than the ledger holds, while CPU 1 pays in the background.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
        (On::Every, Reach::Engine(Counter::ClaimsFree)),
    ],
    ..Scenario::engine("lazy-ledger", "a full ledger", 3, start, body)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..4 {
            k.map(0, page, frame(page), false);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            for page in 0..3 {
                k.reclaim_lazily(0, page);
            }
            k.claim(frame(0));
        }
        1 => {
            k.engine.pay_all();
            k.reclaim_lazily(0, 3);
            k.claim(frame(1));
        }
        _ => {
            k.read(0);
            k.read(1);
        }
    }
}
