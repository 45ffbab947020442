//! CPU 0 starts a flush and goes on; it is told when CPU 1, which reads or is idle, has answered. CPU 2 flushes all the
//! time.

use crate::bare_kernel::BareKernel;
use crate::bare_kernel::starts::two_pages;
use crate::coverage::Reach;
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["StarterNotTold", "SkipWait", "AnswerUnheard"],
    must: &[(On::Interrupts, Reach::Engine(Counter::Sent))],
    ..Scenario::engine(
        "started-unmap",
        "a flush that is started, and not waited for",
        3,
        two_pages,
        body,
    )
};

fn body(k: &BareKernel<'_>, cpu: usize) {
    match cpu {
        0 => {
            if let Some(frame) = k.unmap_started(0, 0) {
                k.give_away(frame);
            }
        }
        1 => {
            k.read(0);
            k.read(0);
        }
        _ => {
            if let Some(frame) = k.unmap(0, 1) {
                k.give_away(frame);
            }
            k.read(0);
        }
    }
}
