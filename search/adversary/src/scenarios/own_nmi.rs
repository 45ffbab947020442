//! NMI handlers on CPU 1 use a mapping of the kernel, which they need no permission for, while CPU 0 takes it
//! away.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelReceiptIsEnough"],
    nmis: 2,
    must: &[(On::Every, Reach::Machine(Happening::KernelAccess))],
    ..Scenario::engine(
        "own-nmi",
        "an NMI handler uses a mapping of the kernel that goes",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
    }
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        if let Some(frame) = k.unmap_own(OWN) {
            k.give_away(frame);
        }
    } else {
        k.read(0);
    }
}
