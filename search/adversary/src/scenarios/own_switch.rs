//! CPU 1 has used a mapping of the kernel that is not global under two tags; CPU 0 takes it away while one of them is
//! loaded.

use crate::bare_kernel::own_half::OWN_TAGGED;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelKeptUnderTags"],
    must: &[(On::Every, Reach::Machine(Happening::KernelAccess))],
    ..Scenario::engine(
        "own-switch",
        "entries of the kernel under a tag that is not loaded",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN_TAGGED, frame(0));
        k.switch(0);
    } else {
        k.switch(0);
        k.switch(1);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap_own(OWN_TAGGED) {
            k.give_away(frame);
        }
    } else {
        k.read_own(OWN_TAGGED);
        k.switch(0);
        k.read_own(OWN_TAGGED);
    }
}
