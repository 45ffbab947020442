//! CPU 0 leaves a space; before it has loaded the next root, CPU 1 uses up all tags, comes to the space that CPU 0
//! leaves, under whatever tag, and frees one of its tables. In the first program it does so twice over: where the space
//! that CPU 0 goes to has no tag any more, the space that it leaves may keep its own the first time, and lose it the
//! second. In the second program tags run out after CPU 0 has found one: then the space that it leaves loses its own at
//! once, and has the same number again the second time.

use crate::bare_kernel::{BareKernel, SECOND, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

/// What both must meet.
const MUST: &[(On, Reach)] = &[
    (On::Scarce, Reach::Engine(Counter::Rollovers)),
    (On::Every, Reach::Machine(Happening::TableFreed)),
];

pub(super) const TWICE: Scenario = Scenario {
    on: On::Broadcast,
    finds: &["RolloverForgetsLeaving"],
    must: MUST,
    ..Scenario::engine(
        "rollover-table",
        "tag rollover while a CPU changes its root",
        2,
        start,
        |k, cpu| body(k, cpu, &[2, 3, 0, 2, 3, 0]),
    )
};

pub(super) const ONCE: Scenario = Scenario {
    on: On::Broadcast,
    must: MUST,
    ..Scenario::engine(
        "rollover-table-once",
        "tag rollover while a CPU changes its root, and has found a tag",
        2,
        start,
        |k, cpu| body(k, cpu, &[2, 3, 0]),
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, SECOND, frame(0), true);
        k.link(0, SECOND);
        k.switch(0);
        k.read(SECOND);
    } else {
        k.switch(1);
    }
}

fn body(k: &BareKernel<'_>, cpu: usize, spaces: &[usize]) {
    if cpu == 0 {
        k.switch(1);
    } else {
        for &space in spaces {
            k.switch(space);
        }
        k.free_table(0, SECOND);
    }
}
