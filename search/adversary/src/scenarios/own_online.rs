//! CPU 1 comes online while CPU 0 takes a mapping of the kernel away.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Purpose;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["KernelFlushedBeforeOnline"],
    must: &[
        (On::Every, Reach::Machine(Happening::KernelAccess)),
        (On::Every, Reach::Machine(Happening::Offline)),
    ],
    ..Scenario::engine(
        "own-online",
        "a CPU comes online while the kernel's mappings change",
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
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        // Without a debt of the space, under some policies: fewer operations order what follows.
        if let Some(frame) = k.unmap_own_for(Purpose::Reclaim, OWN) {
            k.give_away(frame);
        }
    } else {
        k.offline();
        k.online();
        k.read_own(OWN);
    }
}
