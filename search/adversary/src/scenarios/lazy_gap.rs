//! CPU 0 has taken a stamp and stalls before it publishes its debt; CPU 1 takes two debts behind it, pays
//! all there are and maps another page: CPU 2 must not read what was there before.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["PaymentStopsAtGap"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
    ],
    ..Scenario::engine(
        "lazy-gap",
        "a payment past a debt that is not published",
        3,
        start,
        body,
    )
    .with_ledger(4)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..3 {
            k.fill(frame(page), page);
            k.map(usize::from(page != 0), page, frame(page), false);
        }
        k.fill(frame(5), 5);
    }
    k.switch(1);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            k.reclaim_lazily(0, 0);
        }
        1 => {
            k.reclaim_lazily(1, 1);
            k.reclaim_lazily(1, 2);
            k.engine.pay_all();
            k.lock(1);
            k.map(1, 1, frame(5), false);
            k.unlock(1);
            k.must_read(1, 1, Some(5));
        }
        _ => {
            k.read(1);
            k.read(1);
        }
    }
}
