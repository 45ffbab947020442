//! A file page was reclaimed without a flush. CPU 0 truncates the file; once that has returned, CPU 1 may not read the
//! page through the entry that was left behind, whether the page is still away or came back into the cache meanwhile. In
//! the third program the page was moved without a flush, and may be read where it was before.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const AWAY: Scenario = Scenario {
    ..race(
        "vm-truncate-stale",
        "truncation of what was reclaimed lazily",
        start,
    )
};

/// A rescue by a call maps the page nowhere, and says nothing of the entry that was left behind.
pub(super) const BACK: Scenario = Scenario {
    ..race(
        "vm-truncate-rescued",
        "truncation of what came back",
        |k, cpu| {
            start(k, cpu);
            if cpu == 1 {
                k.read_file(0, 0);
            }
        },
    )
};

pub(super) const MOVED: Scenario = Scenario {
    finds: &["VmTruncatesShadowed"],
    must: &[(On::Every, Reach::Engine(Counter::DebtsTaken))],
    ..race(
        "vm-truncate-shadow",
        "truncation of what was moved lazily",
        |k, cpu| {
            if cpu == 0 {
                map(k);
            } else {
                k.read(0);
                k.migrate(0, 1, 1);
            }
        },
    )
    .with_memory([12, 4])
};

const fn race(
    name: &'static str,
    title: &'static str,
    start: fn(&VmKernel<'_>, usize),
) -> Scenario<'static> {
    Scenario {
        must: &[
            (On::Every, Reach::Engine(Counter::DebtsTaken)),
            (On::Every, Reach::Machine(Happening::FrameRescued)),
        ],
        ..Scenario::over_vm(name, title, 2, start, body)
    }
}

fn map(k: &VmKernel<'_>) {
    k.read_clean_file(0);
    k.keep_table();
}

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        map(k);
    } else {
        k.page_out(0, 1);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.truncate(0, 0);
        k.tell(0);
    } else {
        k.wait_for(0);
        k.read(0);
    }
}
