//! CPU 1 loads a space that was never loaded, under a tag that no other CPU knows yet; CPU 0 unmaps a page of
//! it.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &["16"],
    finds: &["TagWalkedBeforeSeen"],
    must: &[
        (On::Every, Reach::Machine(Happening::FrameReused)),
        (On::Every, Reach::Machine(Happening::Fault)),
    ],
    ..Scenario::engine(
        "first-switch-unmap",
        "a space's first load against unmap",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 0, frame(0), true);
    }
    k.switch(1);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap(0, 0) {
            k.give_away(frame);
        }
    } else {
        k.switch(0);
        k.read(0);
        k.read(0);
    }
}
