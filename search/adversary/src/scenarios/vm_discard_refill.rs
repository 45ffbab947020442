//! CPU 0 discards memory; before it has flushed, CPU 1 writes there, and its fault fills the entry that it finds empty.
//! Where break before make is asked for, the fault has to flush what CPU 0 has taken away: a page of another frame
//! comes in its place, or the file's page where its copy was, or a table where a large page was.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::{FIRST_PROCESS, VmKernel};
use quell_vm::contract::Clause;

/// The page that both are about.
const PAGE: u64 = 0;
const LARGE: u64 = 512;
/// How many large pages go before the first is flushed.
const LARGES: u64 = 3;

pub(super) const SAME_SIZE: Scenario = Scenario {
    finds: &["VmRefillsUnsettled", "RulesOfAnother"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    ..Scenario::over_vm(
        "vm-discard-refill",
        "discard of a page against a fault there",
        2,
        start,
        |k, cpu| body(k, cpu, 1),
    )
    .then(after)
};

pub(super) const FILE: Scenario = Scenario {
    finds: &["VmRefillsFileUnsettled"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    ..Scenario::over_vm(
        "vm-discard-refill-file",
        "discard of a private copy against a fault that finds the file's page",
        2,
        start_file,
        body_file,
    )
};

pub(super) const SMALLER: Scenario = Scenario {
    finds: &["VmRefillsUnsettled"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 5,
    ..Scenario::over_vm(
        "vm-discard-refill-smaller",
        "discard of a large page against a fault that finds memory for a small one",
        2,
        start_large,
        |k, cpu| body(k, cpu, LARGE),
    )
    // One large block, which the discard holds until it has flushed.
    .with_memory([1040, 0])
    .then(after)
};

pub(super) const TABLE: Scenario = Scenario {
    finds: &["VmLinksTableUnsettled"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 5,
    ..Scenario::over_vm(
        "vm-discard-refill-table",
        "discard of large pages against faults that put a table in place of the first",
        3,
        start_larges,
        |k, cpu| body(k, cpu, LARGES * LARGE),
    )
    // As many large blocks as the discard holds until it has flushed.
    .with_memory([LARGES * LARGE + 528, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(PAGE, 1);
        k.write(PAGE, 1);
        k.keep_table();
    }
}

/// A copy of the file's page, which may be stored to.
fn start_file(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_private(PAGE, 1, file);
        k.write(PAGE, 2);
        k.keep_table();
    }
}

fn body_file(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(PAGE, 1);
    } else {
        k.read(PAGE);
    }
}

fn start_large(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(PAGE, LARGE);
        k.write(PAGE, 1);
    }
}

fn start_larges(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(PAGE, LARGES * LARGE);
        for large in 0..LARGES {
            k.write(PAGE + large * LARGE, 1);
        }
    }
}

fn body(k: &VmKernel<'_>, cpu: usize, pages: u64) {
    if cpu == 0 {
        k.discard(PAGE, pages);
    } else {
        k.write(PAGE, 2);
    }
}

/// What CPU 1 wrote is there, or went with the page that it was written to.
fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        matches!(k.holds(FIRST_PROCESS, PAGE), None | Some(0 | 2)),
        "the page holds what was there before the discard",
    );
}
