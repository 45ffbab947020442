//! CPU 0 unmaps a page whose frame is to leave the machine, and waits until all have flushed: a receipt is not enough,
//! because a CPU may load by speculation until it has flushed. In the second program CPU 1 is idle, and keeps what it
//! is not asked for.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const RUNNING: Scenario = Scenario {
    finds: &["QuiesceTakesReceipt"],
    must: &[
        (On::Interrupts, Reach::Engine(Counter::WaitedReceipt)),
        (On::Every, Reach::Machine(Happening::StaleUse)),
    ],
    ..Scenario::engine(
        "withdraw-running",
        "a frame leaves the machine, whose page a CPU uses",
        2,
        |k, cpu| start(k, cpu, false),
        |k, cpu| {
            if cpu == 0 {
                if let Some(frame) = k.unmap(0, 0) {
                    k.withdraw(frame);
                }
            } else {
                k.read(0);
                k.read(0);
            }
        },
    )
};

pub(super) const IDLE: Scenario = Scenario {
    finds: &["LazySkippedForTables", "LeavesThenCatchesUp"],
    must: &[(On::Interrupts, Reach::Engine(Counter::Sent))],
    ..Scenario::engine(
        "withdraw-idle",
        "a frame leaves the machine, whose page an idle CPU keeps",
        2,
        |k, cpu| start(k, cpu, true),
        |k, cpu| {
            if cpu == 0 {
                if let Some(frame) = k.unmap_for_all(0, 0) {
                    k.withdraw(frame);
                }
            } else {
                k.switch(0);
                k.read(0);
            }
        },
    )
};

fn start(k: &BareKernel<'_>, cpu: usize, idle: bool) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(0);
    if cpu == 1 && idle {
        k.idle();
    }
}
