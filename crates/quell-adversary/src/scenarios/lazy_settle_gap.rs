//! CPU 0 takes a page lazily and stalls before it publishes its debt; CPU 1 takes another page of the space, pays what is published, and
//! unmaps CPU 0's page for the program: the space's latest debt is paid, the earlier one is not.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["SettleAsksLatestAlone"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
        (On::Every, Reach::Engine(Counter::PaidBySettle)),
    ],
    ..Scenario::engine(
        "lazy-settle-gap",
        "a call meets an entry of an earlier debt that is not published",
        3,
        start,
        body,
    )
    .with_ledger(4)
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for page in 0..2 {
            k.map(0, page, frame(page), false);
        }
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => k.reclaim_then_owe(0, 0),
        1 => {
            k.reclaim_then_owe(0, 1);
            k.engine.pay_all();
            k.unmap(0, 0);
        }
        _ => {
            k.read(0);
            k.read(0);
        }
    }
}
