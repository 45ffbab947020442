//! CPU 0 reclaims a page, its flush still to come; CPU 1 unmaps the same page, finds the entry empty and returns.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["6", "19", "4"],
    finds: &["SettleOnlyWaits", "DebtNotRecorded", "SettleSkipped"],
    must: &[(On::Every, Reach::Engine(Counter::PaidBySettle))],
    ..Scenario::engine(
        "reclaim-unmap",
        "a second actor meets a cleared entry: unmap",
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
        if let Some(frame) = k.reclaim(&[0], 0) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
        k.unmap(0, 0);
        k.read(0);
    }
}
