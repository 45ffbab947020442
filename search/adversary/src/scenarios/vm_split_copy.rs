//! Two CPUs of a child write to a large page that its parent maps too, and there is no second block to copy it to.
//! Meanwhile the parent drops its own: whichever child's CPU looks last finds the child alone, and splits the page in
//! place. The other has its copy in pieces ready for a page that is whole no more, and whose first piece lies in the
//! same frame.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell_vm::contract::Clause;

const PAGES: u64 = 512;
/// The child's number: the second process.
const CHILD: u32 = 2;
/// The page that both of its CPUs write.
const WRITTEN: u64 = 300;

pub(super) const SCENARIO: Scenario = Scenario {
    finds: &["VmUnsharesPiece"],
    must: &[(On::Every, Reach::Machine(Happening::CallReturned))],
    one_in: 50,
    steps: 64_000,
    ..Scenario::over_vm(
        "vm-split-copy",
        "split of a large page against its copy in pieces",
        3,
        start,
        body,
    )
    // One large block, and enough around it for one copy in pieces.
    .with_memory([1040, 0])
    .then(after)
};

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map_large(0, PAGES);
        k.write(0, 1);
        assert_eq!(k.fork(), CHILD);
    }
}

fn body(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.discard(0, PAGES);
    } else {
        k.enter(CHILD);
        // Without memory for a second copy in pieces it fails.
        k.write(WRITTEN, cpu as u64);
    }
}

fn after(k: &VmKernel<'_>) {
    k.must(
        Clause::C2,
        k.holds(CHILD, 0) == Some(1),
        "what the child had is lost in the split",
    );
}
