//! Tags run out while CPU 1 runs a space, whose tag is set aside. CPU 0 comes to that space, which keeps the tag; then
//! CPU 1 goes offline. The tag stays set aside: if the next space got it, the two would share what the TLB holds.

use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    on: On::Broadcast,
    must: &[
        (On::Scarce, Reach::Engine(Counter::Rollovers)),
        (On::Every, Reach::Machine(Happening::Offline)),
    ],
    ..Scenario::engine(
        "rollover-offline",
        "a CPU goes offline whose tag was set aside",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in 0..5 {
            k.map(space, 0, frame(space as u64), true);
        }
    }
    k.switch(cpu);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        for space in [2, 3, 1] {
            k.switch(space);
        }
        k.tell(0);
        k.wait_for(1);
        for space in [4, 1] {
            k.switch(space);
            k.read(0);
        }
    } else {
        k.wait_for(0);
        k.offline();
        k.tell(1);
    }
}
