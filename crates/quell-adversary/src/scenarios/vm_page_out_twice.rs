//! Two CPUs page the same page out, and one of them takes it back and writes it.

use super::{On, Scenario};
use crate::coverage::{Happening, Reach};
use crate::managed::Managed;

pub(super) const SCENARIO: Scenario = Scenario {
    must: &[(On::Every, Reach::Machine(Happening::Captured))],
    ..Scenario::managed(
        "vm-page-out-twice",
        "page-out against page-out",
        2,
        start,
        body,
    )
};

fn start(k: &Managed<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn body(k: &Managed<'_>, cpu: usize) {
    k.page_out(0, 1);
    if cpu == 1 {
        k.write(0, 2);
        assert_eq!(k.read(0), Some(2));
    }
}
