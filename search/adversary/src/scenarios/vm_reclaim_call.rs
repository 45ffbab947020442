//! CPU 0 reclaims a page: its entry is cleared and the flush comes later. CPU 1 makes a call about the page in between,
//! finds nothing to flush, and must not return before the old entry is gone.

use crate::coverage::{Happening, Reach};
use crate::scenario::{On, Scenario};
use crate::vm_kernel::VmKernel;
use quell::Counter;

pub(super) const UNMAP: Scenario = Scenario {
    bugs: &["6", "19"],
    finds: &["VmUnmapsUnsettled"],
    ..against("vm-reclaim-unmap", "reclaim against unmap", |k, cpu| {
        race(k, cpu, || {
            k.unmap(0, 1);
            k.read(0);
        })
    })
};

pub(super) const DISCARD: Scenario = Scenario {
    bugs: &["4", "6"],
    finds: &["VmDiscardsUnsettled"],
    ..against("vm-reclaim-discard", "reclaim against discard", |k, cpu| {
        race(k, cpu, || {
            k.discard(0, 1);
            k.read(0);
        })
    })
};

pub(super) const PROTECT: Scenario = Scenario {
    bugs: &["3", "19"],
    finds: &["VmProtectsUnsettled"],
    ..against("vm-reclaim-protect", "reclaim against protect", |k, cpu| {
        race(k, cpu, || {
            k.protect(0, 1);
            k.write(0, 3);
        })
    })
};

pub(super) const REMAP: Scenario = Scenario {
    finds: &["VmRemapsUnsettled"],
    ..against("vm-reclaim-remap", "reclaim against remap", |k, cpu| {
        race(k, cpu, || {
            k.remap(0, 1, 2);
            k.read(0);
            k.read(2);
        })
    })
};

const fn against(
    name: &'static str,
    title: &'static str,
    body: fn(&VmKernel<'_>, usize),
) -> Scenario<'static> {
    Scenario {
        must: &[
            (On::Every, Reach::Engine(Counter::PaidBySettle)),
            (On::Every, Reach::Machine(Happening::CallReturned)),
        ],
        ..Scenario::over_vm(name, title, 2, start, body).with_memory([8, 0])
    }
}

fn start(k: &VmKernel<'_>, cpu: usize) {
    if cpu == 0 {
        k.map(0, 1);
        k.write(0, 1);
        k.keep_table();
    }
}

fn race(k: &VmKernel<'_>, cpu: usize, call: impl FnOnce()) {
    if cpu == 0 {
        k.reclaim(1);
    } else {
        call();
    }
}
