//! CPU 0 takes a page of a program away without a flush, and a range of the kernel; then it pays for both, and gives
//! both away. CPU 1 runs that program and is not to be disturbed: it uses the one at once, the other once it has
//! entered the kernel.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use quell::Counter;

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["PaymentLeftToEntry"],
    must: &[
        (On::Every, Reach::Engine(Counter::DebtsTaken)),
        (On::Every, Reach::Engine(Counter::PaidByBackground)),
        (On::Every, Reach::Machine(Happening::Claimed)),
        (On::Interrupts, Reach::Engine(Counter::Sent)),
    ],
    ..Scenario::engine(
        "own-program-debt",
        "debts of the kernel and of an undisturbed program are paid together",
        2,
        start,
        body,
    )
};

fn start(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.use_own_half();
        k.map_own(OWN, frame(0));
        k.map(0, 0, frame(2), false);
    }
    k.switch(0);
    if cpu == 1 {
        k.enter_user();
    }
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        let taken = k.reclaim_lazily(0, 0);
        let (freed, stamp) = k.unmap_own_lazily(OWN);
        k.reuse_own(OWN, stamp, frame(1), 7);
        k.tell(0);
        for frame in [taken, freed].into_iter().flatten() {
            k.claim(frame);
        }
    } else {
        k.read(0);
        k.wait_for(0);
        k.read(0);
        k.enter_kernel();
        k.read_own(OWN);
    }
}
