//! The races: which programs meet, and after what.

use crate::machine::{Moment, World};
use crate::manager;
use crate::programs::*;
use crate::race::{Race, Setup, free, race};
use quell::{Mechanism, Policy, Purpose, Scope};

/// What most races have: everything on, and CPU 1 running the space with page 0 in its TLB.
const SETUP: Setup = Setup {
    policy: Policy::ALL,
    broadcast: false,
    epochs: 2,
    prepare: run_there,
    programs: &[],
    held_up: &[],
    finally: |_| (),
};

pub const RACES: &[Race] = &[
    race(
        "a flush that waits until it is done",
        Setup {
            policy: Policy::BASELINE,
            programs: &[|w| w.unmap_for_good(Scope::Leaf), |w| w.hw.access(0)],
            ..SETUP
        },
    ),
    race(
        "a flush that waits for the receipt",
        Setup {
            programs: &[unmap, |w| w.hw.access(0)],
            ..SETUP
        },
    ),
    race(
        "the flush of a table",
        Setup {
            programs: &[|w| w.unmap_for_good(Scope::Tables), |w| w.hw.access(0)],
            ..SETUP
        },
    ),
    race(
        "a handler that nobody called",
        Setup {
            programs: &[unmap, |w| {
                w.engine.on_interrupt();
                w.hw.access(0);
            }],
            ..SETUP
        },
    ),
    race(
        "a CPU goes idle while its space is flushed",
        Setup {
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.enter_lazy();
            }],
            ..SETUP
        },
    ),
    race(
        "an idle CPU comes back",
        Setup {
            prepare: idle_there,
            programs: &[unmap, resume],
            ..SETUP
        },
    ),
    race(
        "an idle CPU comes back to a debt",
        Setup {
            prepare: idle_there,
            programs: &[owe_and_claim, resume],
            ..SETUP
        },
    ),
    race(
        "a space is loaded while it is flushed",
        Setup {
            prepare: run_other_there,
            programs: &[unmap, load],
            ..SETUP
        },
    ),
    race(
        "a space is loaded while one page of it after the other is flushed",
        Setup {
            policy: Policy::only(Mechanism::Tags),
            prepare: run_other_there,
            programs: &[unmap_one_by_one, load],
            ..SETUP
        },
    ),
    race(
        "an idle CPU loads a space while it is flushed",
        Setup {
            prepare: idle_with_other_there,
            programs: &[unmap, load],
            ..SETUP
        },
    ),
    race(
        "a space is loaded while a debt is taken",
        Setup {
            prepare: run_other_there,
            programs: &[owe_and_claim, load],
            ..SETUP
        },
    ),
    race(
        "a CPU leaves a space while it is flushed",
        Setup {
            programs: &[unmap, leave],
            ..SETUP
        },
    ),
    race(
        "a CPU leaves a space that is retired",
        Setup {
            programs: &[retire, leave],
            ..SETUP
        },
    ),
    race(
        "a space is retired under an idle CPU",
        Setup {
            programs: &[retire, |w| {
                w.engine.enter_lazy();
                w.hw.look(0);
            }],
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline while it is asked",
        Setup {
            policy: Policy::BASELINE,
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline while its receipt is awaited",
        Setup {
            programs: &[unmap, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline and comes back while it is asked to pay",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
                w.engine.cpu_online();
            }],
            ..SETUP
        },
    ),
    race(
        "a CPU comes back while it is asked",
        Setup {
            prepare: |w| {
                run_other_there(w);
                if w.me() == 1 {
                    w.engine.cpu_offline(Some(&w.other));
                }
            },
            programs: &[unmap, |w| {
                w.engine.cpu_online();
                w.engine.switch_to(None, &w.space);
                w.hw.access(0);
            }],
            ..SETUP
        },
    ),
    race(
        "a second actor meets a batch that flushes alone",
        Setup {
            programs: &[rely, |w| {
                w.hw.access(0);
                unmap_under_lock(w);
            }],
            ..SETUP
        },
    ),
    race(
        "a second actor meets a batch that flushes elsewhere",
        Setup {
            policy: Policy::only(Mechanism::Batch),
            programs: &[
                |w| {
                    unmap_under_lock(w);
                },
                |w| {
                    w.hw.access(0);
                    rely(w);
                },
            ],
            ..SETUP
        },
    ),
    race(
        "two second actors meet a debt",
        Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    settle(w);
                    w.hw.own(0);
                },
                |w| {
                    w.hw.access(0);
                    settle(w);
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a claim against an access",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| w.hw.access(0)],
            ..SETUP
        },
    ),
    race(
        "a claim against a rescue",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                if w.residue.rescue(&w.engine) {
                    w.hw.look(0);
                }
            }],
            ..SETUP
        },
    ),
    race(
        "a rescue that comes too late",
        Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if !w.residue.rescue(&w.engine) {
                        w.hw.own(0);
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a refill against a claim",
        Setup {
            prepare: owe_there,
            programs: &[refill, |w| {
                w.hw.access(0);
                let _ = w.engine.claim(&w.residue);
            }],
            ..SETUP
        },
    ),
    race(
        "a refill against a debt that becomes none",
        Setup {
            programs: &[
                |w| {
                    if w.locks() {
                        refill(w)
                    }
                },
                |w| {
                    w.hw.access(0);
                    w.residue.begin();
                    let mut batch = w.engine.batch(Purpose::Lazy);
                    let range = w.clear(0);
                    batch.unmapped(&w.space, range, 0);
                    w.unlock();
                    w.hw.access(0);
                    for _ in batch.finish() {}
                    w.residue.settle_flushed();
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a look at a frame that owes nothing any more",
        Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.residue.is_clear() {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a look at a frame whose debt is paid",
        Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.engine.is_paid(&w.residue) {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    w.engine.pay_all();
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a claim while the debt is taken",
        Setup {
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.unmap_lazily();
                w.hw.access(0);
            }],
            ..SETUP
        },
    ),
    race(
        "a look at a frame that was claimed",
        Setup {
            prepare: owe_there,
            programs: &[
                |w| {
                    if w.engine.is_paid(&w.residue) {
                        w.hw.own(0)
                    }
                },
                |w| {
                    w.hw.access(0);
                    let _ = w.engine.claim(&w.residue);
                },
            ],
            ..SETUP
        },
    ),
    race(
        "the background pays while a debt is taken",
        Setup {
            programs: &[
                |w| w.engine.pay_all(),
                |w| {
                    w.unmap_lazily();
                    let _ = w.engine.claim(&w.residue);
                    assert!(!w.hw.holds(1, 0), "C1: claimed, and the CPU holds the page");
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline with a space that is retired",
        Setup {
            programs: &[retire, |w| {
                w.hw.look(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            ..SETUP
        },
    ),
    race(
        "a claim of what the background pays",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.pay_all();
            }],
            ..SETUP
        },
    ),
    race(
        "a claim against a flush",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, flush_whole],
            ..SETUP
        },
    ),
    Race {
        preemptions: 3,
        ..race(
            "a debt against a flush",
            Setup {
                programs: &[owe_and_claim, flush_whole],
                ..SETUP
            },
        )
    },
    race(
        "a claim against a CPU that leaves",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, leave],
            ..SETUP
        },
    ),
    race(
        "a claim against a CPU that goes idle",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.enter_lazy();
            }],
            ..SETUP
        },
    ),
    race(
        "a claim while the ledger is used again",
        Setup {
            epochs: 1,
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.hw.access(0);
                w.engine.pay_all();
                let mut batch = w.engine.batch(Purpose::Lazy);
                batch.unmapped(&w.other, quell::PageRange::base(quell::Page(1), 1), 1);
                let _ = batch.finish_owed();
            }],
            ..SETUP
        },
    ),
    race(
        "a claim of what another CPU has paid, in a ledger that is used again",
        Setup {
            epochs: 1,
            prepare: owe_there,
            programs: &[
                |w| {
                    let mut batch = w.engine.batch(Purpose::Lazy);
                    batch.unmapped(&w.other, quell::PageRange::base(quell::Page(1), 1), 1);
                    let _ = batch.finish_owed();
                    w.claim();
                },
                |w| {
                    w.hw.access(0);
                    w.engine.pay_all();
                },
            ],
            ..SETUP
        },
    ),
    race(
        "a request comes while another is taken",
        Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            prepare: run_both_pages_there,
            programs: &[unmap_one_by_one, |_| ()],
            held_up: &[Moment::Sent],
            finally: nothing_lost,
            ..SETUP
        },
    ),
    race(
        "a request comes while another is written",
        Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            prepare: run_both_pages_there,
            programs: &[unmap_one_by_one, |_| ()],
            held_up: &[Moment::Sent, Moment::Locked],
            finally: nothing_lost,
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline while its inbox is locked",
        Setup {
            policy: Policy::only(Mechanism::RemoteFlush),
            programs: &[unmap_one_by_one, |w| {
                w.hw.access(0);
                w.engine.cpu_offline(Some(&w.space));
            }],
            held_up: &[Moment::Locked],
            ..SETUP
        },
    ),
    race(
        "a CPU goes offline and comes back with a request in its inbox",
        Setup {
            prepare: owe_there,
            programs: &[World::claim, |w| {
                w.engine.cpu_offline(Some(&w.space));
                w.engine.cpu_online();
            }],
            held_up: &[Moment::Sent],
            ..SETUP
        },
    ),
    race(
        "a broadcast against an access",
        Setup {
            broadcast: true,
            programs: &[unmap, |w| w.hw.access(0)],
            ..SETUP
        },
    ),
    race(
        "a broadcast against a first load",
        Setup {
            broadcast: true,
            prepare: |_| (),
            programs: &[unmap, |w| {
                w.engine.switch_to(None, &w.space);
                w.hw.access(0);
            }],
            ..SETUP
        },
    ),
    race(
        "two CPUs need tags",
        Setup {
            broadcast: true,
            prepare: |_| (),
            programs: &[
                |w| w.engine.switch_to(None, &w.other),
                |w| {
                    w.engine.switch_to(None, &w.space);
                    w.hw.access(0);
                },
            ],
            finally: tags_differ,
            ..SETUP
        },
    ),
    race(
        "a tag rollover against a switch",
        Setup {
            broadcast: true,
            prepare: use_up_tags,
            programs: &[
                |w| w.engine.switch_to(None, &w.third),
                |w| {
                    w.engine.switch_to(Some(&w.other), &w.space);
                    w.hw.access(0);
                },
            ],
            finally: tags_differ,
            ..SETUP
        },
    ),
    free("zeroed frames change hands", pool),
    free("two CPUs take a lock", manager::lock),
    free("a reader meets a writer", manager::read_and_write),
    free("two CPUs write under one lock", manager::write_twice),
    free("a walk comes to a new table", manager::walk),
    free(
        "a file is cut while a page beyond its end is made",
        manager::truncate,
    ),
];
