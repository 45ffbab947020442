//! A file page was reclaimed without a flush and came back by a call, which maps it nowhere and writes it. CPU 0 moves it to
//! another node, and gets its frame for something else; CPU 1 reads through the entry that was left behind.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmMigratesPastMarker"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Machine(Happening::FrameRescued)),
        (On::Every, Reach::Machine(Happening::FrameReused)),
    ],
    ..Scenario::over_vm(
        "vm-migrate-rescued",
        "reclaimed lazily, back, and moved",
        2,
        start,
        body,
    )
    .with_memory([12, 4])
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let file = k.create_clean(1, 1);
        k.map_file_read(0, 1, file);
        k.read(0);
        k.map(4, 1);
        k.keep_table();
    } else {
        k.read(0);
        k.page_out(0, 1);
        k.write_file(0, 0, 2);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.demote(1);
        k.write(4, 5);
        k.tell(0);
    } else {
        k.wait_for(0);
        k.read(0);
    }
}
