//! CPU 0 cuts a file to nothing while CPU 1 writes a page of it, which makes it longer again if the truncation has come
//! first: then the file holds what was written; if the write has come first, it is empty.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

/// The page lies beyond the end from the start: the manager's records show one that was passed by.
pub(super) const BEYOND: Scenario = Scenario {
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    ..Scenario::over_vm(
        "vm-truncate-write",
        "truncation against a write beyond the end",
        2,
        start,
        |k, cpu| race(k, cpu, 1),
    )
};

/// The page is one that goes: neither is the file longer than what was written to it, nor is that lost.
pub(super) const WITHIN: Scenario = Scenario {
    finds: &["VmLengthensUnlocked"],
    must: &[(On::Every, Reach::Machine(Happening::FrameReused))],
    ..Scenario::over_vm(
        "vm-truncate-rewrite",
        "truncation against a write to a page that goes",
        2,
        start,
        |k, cpu| race(k, cpu, 0),
    )
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_read(0, 1, file);
    }
}

fn race(k: &VmKernel<'_>, cpu: usize, page: u64) {
    if cpu == 0 {
        k.truncate(0, 0);
    } else {
        k.write_file(0, page, 7);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        matches!(k.holds(1, 0), None | Some(7)),
        "a file is as long as a write has made it, but what was written is lost",
    );
}
