//! CPU 0 flushes under the lock of the tables, for which CPU 1 spins with interrupts off.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["PollSkipsInbox"],
    must: &[(On::Interrupts, Reach::Engine(Counter::Waited))],
    ..Scenario::engine(
        "lock-masked",
        "a CPU spins with interrupts off for a lock that a flushing CPU holds",
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
        if let Some(frame) = k.unmap_locked(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.pass_lock_masked(0);
        k.read(0);
    }
}
