//! CPU 1 comes to a space, leaves it and comes back while CPU 0 unmaps a page of it and flushes at once, without a
//! batch: no debt tells CPU 1 of the flush, the generation alone does.

use super::switch_unmap::{MUST, come_and_go};
use crate::bare_kernel::{BareKernel, frame};
use crate::scenario::Scenario;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["8"],
    finds: &[
        "SwitchPublishesLate",
        "SkipGenerationBump",
        "SkipPost",
        "SkipWait",
    ],
    must: MUST,
    ..Scenario::engine(
        "switch-at-once",
        "context switch against a flush without a batch",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
        k.switch(0);
    } else {
        k.switch(0);
        k.read(0);
        k.switch(1);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read(0);
        if let Some(frame) = k.unmap_at_once(0, 0) {
            k.give_away(frame);
        }
    } else {
        come_and_go(k);
    }
}
