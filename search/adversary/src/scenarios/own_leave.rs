//! CPU 1 has used a mapping of the kernel that is not global under the tag of a space, and has left that space's root
//! when CPU 0 takes the mapping away. Then it comes back to the space, which no CPU has changed.

use crate::bare_kernel::own_half::OWN_TAGGED;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &[],
    must: &[(On::Every, Reach::Machine(Happening::KernelAccess))],
    ..Scenario::engine(
        "own-leave",
        "entries of the kernel under the tag of a root that a CPU has left",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN_TAGGED, frame(0));
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap_own(OWN_TAGGED) {
            k.give_away(frame);
        }
    } else {
        k.leave();
        k.read_own(OWN_TAGGED);
        k.switch(0);
        k.read_own(OWN_TAGGED);
    }
}
