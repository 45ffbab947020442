//! A file page was reclaimed without a flush and came back by a call, which maps it nowhere. CPU 0 writes it, reclaims
//! it, this time at once, and gets its frame for something else; CPU 1 reads through the entry that was left behind the
//! first time. In the second program CPU 0 moves the page to another node in place of reclaiming it.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const RECLAIMED: Scenario = race(
    "vm-reclaim-rescued",
    "reclaimed lazily, back, and reclaimed at once",
    |k, cpu| body(k, cpu, || k.reclaim(1)),
);

pub(super) const MOVED: Scenario = Scenario {
    finds: &["VmMigratesPastMarker"],
    ..race(
        "vm-migrate-rescued",
        "reclaimed lazily, back, and moved",
        |k, cpu| body(k, cpu, || k.demote(1)),
    )
    .with_memory([12, 4])
};

const fn race(
    name: &'static str,
    title: &'static str,
    body: fn(&VmKernel<'_>, usize),
) -> Scenario<'static> {
    Scenario {
        must: &[
            (On::Every, Reach::Engine(Counter::DebtsTaken)),
            (On::Every, Reach::Machine(Happening::FrameRescued)),
            (On::Every, Reach::Machine(Happening::FrameReused)),
        ],
        ..Scenario::over_vm(name, title, 2, start, body)
    }
}

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.read_clean_file(0);
        k.map(4, 1);
    } else {
        k.page_out(0, 1);
        k.write_file(0, 0, 2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize, take_away: impl FnOnce() -> u64) {
    if cpu == 0 {
        take_away();
        k.write(4, 5);
        k.tell(0);
    } else {
        k.wait_for(0);
        k.read(0);
    }
}
