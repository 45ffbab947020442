//! CPU 0 replaces text of the kernel; CPU 1 may have fetched the old one, and executes it once CPU 0 is through.

use crate::bare_kernel::own_half::OWN;
use crate::bare_kernel::{BareKernel, frame};
use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};

pub(super) const SCENARIO: Scenario = Scenario {
    bugs: &[],
    finds: &["TextKeptFetched", "FetchedTextStays"],
    must: &[(On::Every, Reach::Machine(Happening::TextSynchronized))],
    ..Scenario::engine(
        "own-text",
        "text of the kernel is replaced while another CPU executes it",
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
    k.switch(0);
}

fn body(k: &BareKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.replace_text(OWN, 7);
    } else {
        k.execute_own(OWN);
        k.execute_own(OWN);
    }
}
