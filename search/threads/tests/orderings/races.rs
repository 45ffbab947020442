//! The races: their programs and preparations.

use crate::machine::{PausePoint, World};
use crate::manager;
use crate::programs::*;
use crate::race::{Race, free, meet, race};
use quell::{Mechanism, Policy, Purpose, Scope};

pub const RACES: &[Race] = &[
    race(
        "a flush that waits until it is done",
        meet(&[|w| w.unmap_for_good(Scope::Leaf), use_page]).under(Policy::BASELINE),
    ),
    race("a flush that waits for the receipt", meet(&[unmap, use_page])),
    race("the flush of a table", meet(&[|w| w.unmap_for_good(Scope::Tables), use_page])),
    race("a handler that no interrupt called", meet(&[unmap, handle_unasked])),
    race(
        "a shared flush that waits until it is done",
        meet(&[|w| w.unmap_for_good(Scope::Tables), use_page]).sharing(),
    ),
    race("a shared flush that waits for the receipt", meet(&[unmap, use_page]).sharing()),
    race(
        "a handler finds a shared request that no interrupt announced",
        meet(&[unmap, handle_unasked]).sharing(),
    ),
    // With two preemptions, three CPUs have 79 000 ways.
    Race {
        preemptions: 1,
        ..race(
            "two targets answer a shared flush",
            meet(&[unmap, use_page, use_page]).sharing().after(run_on_all_others),
        )
    },
    race("a CPU is quiesced after a shared flush", meet(&[unmap_and_quiesce, use_page]).sharing()),
    race("a CPU goes offline while it has a shared request", meet(&[unmap, go_offline]).sharing()),
    race("a CPU goes idle while its space is flushed", meet(&[unmap, go_idle])),
    race("an idle CPU comes back", meet(&[unmap, resume]).after(idle_there)),
    race(
        "an idle CPU comes back to a deferred flush",
        meet(&[defer_and_reuse, resume]).after(idle_there),
    ),
    race(
        "two tasks share a flush",
        meet(&[
            |w| unmap_coalesced(w, 0),
            |w| {
                w.hw.access(0);
                unmap_coalesced(w, 1);
                w.hw.access(0);
            },
        ])
        .after(run_both_pages_there),
    ),
    race(
        "a program enters the kernel, whose mappings change",
        meet(&[unmap_own, enter_kernel]).after(in_user_there),
    ),
    race(
        "a program that has a deferred flush enters the kernel, whose mappings change",
        meet(&[unmap_own, enter_kernel]).after(deferring_there),
    ),
    race(
        "a program is returned to while the kernel's mappings change",
        meet(&[unmap_own, |w| {
            w.hw.access(0);
            enter_user(w);
        }]),
    ),
    race("a space is loaded while it is flushed", meet(&[unmap, load]).after(run_other_there)),
    race(
        "a space is loaded while one page of it after the other is flushed",
        meet(&[unmap_one_by_one, load]).after(run_other_there).under(Policy::only(Mechanism::Tags)),
    ),
    race(
        "an idle CPU loads a space while it is flushed",
        meet(&[unmap, load]).after(idle_with_other_there),
    ),
    race(
        "a space is loaded while a deferred flush is taken",
        meet(&[defer_and_reuse, load]).after(run_other_there),
    ),
    race("a CPU leaves a space while it is flushed", meet(&[unmap, leave])),
    race("a CPU leaves a space that is retired", meet(&[retire, leave])),
    race(
        "a space is retired under an idle CPU",
        meet(&[retire, |w| {
            w.engine.this_cpu().enter_lazy();
            w.hw.look(0);
        }]),
    ),
    race(
        "a CPU goes offline while it is asked",
        meet(&[unmap, go_offline]).under(Policy::BASELINE),
    ),
    race("a CPU goes offline while its receipt is awaited", meet(&[unmap, go_offline])),
    race(
        "a CPU goes offline and comes back while it is asked to flush",
        meet(&[World::flush_before_reuse, |w| {
            w.hw.access(0);
            w.engine.cpu_offline(Some(&w.space));
            w.engine.cpu_online();
        }])
        .after(defer_there),
    ),
    race(
        "a CPU comes back while it is asked",
        meet(&[unmap, |w| {
            w.engine.cpu_online();
            run(w);
        }])
        .after(|w| {
            run_other_there(w);
            if w.me() == 1 {
                w.engine.cpu_offline(Some(&w.other));
            }
        }),
    ),
    race(
        "a CPU comes online while the kernel's mappings change",
        meet(&[unmap_own, |w| {
            come_online(w);
            w.hw.access_own(0);
        }])
        .after(offline_there),
    ),
    race(
        "a CPU comes online while the kernel's text changes",
        meet(&[change_text, |w| {
            come_online(w);
            w.hw.forget_fetched();
            w.hw.access_own(0);
        }])
        .after(offline_there),
    ),
    race(
        "a later observer meets a batch that flushes alone",
        meet(&[rely, |w| {
            w.hw.access(0);
            unmap_under_lock(w);
        }]),
    ),
    race(
        "a later observer meets a batch that flushes elsewhere",
        meet(&[unmap_under_lock, |w| {
            w.hw.access(0);
            rely(w);
        }])
        .under(Policy::only(Mechanism::Batch)),
    ),
    race(
        "two later observers meet a deferred flush",
        meet(&[rely_on_flush_pending, use_and_flush_pending]).after(defer_there),
    ),
    race(
        "two later observers meet a change that no batch counts",
        meet(&[rely_on_flush_pending, use_and_flush_pending]).after(overflow_there),
    ),
    race(
        "a reuse against an access",
        meet(&[World::flush_before_reuse, use_page]).after(defer_there),
    ),
    race(
        "a reuse against a reinstate",
        meet(&[World::flush_before_reuse, |w| {
            if w.deferred_flush.reinstate(&w.engine) {
                w.hw.look(0);
            }
        }])
        .after(defer_there),
    ),
    race(
        "reinstating too late",
        meet(&[
            |w| {
                if !w.deferred_flush.reinstate(&w.engine) {
                    w.hw.own(0);
                }
            },
            use_and_reuse,
        ])
        .after(defer_there),
    ),
    race("a refill against a reuse", meet(&[refill, use_and_reuse]).after(defer_there)),
    race(
        "a refill against a deferred flush that becomes none",
        meet(&[
            |w| {
                if w.locks() {
                    refill(w)
                }
            },
            |w| {
                w.hw.access(0);
                w.deferred_flush.begin();
                let mut batch = w.engine.batch(Purpose::Lazy);
                let range = w.clear(0);
                batch.unmapped(&w.space, range, 0);
                w.unlock();
                w.hw.access(0);
                for _ in batch.finish() {}
                w.deferred_flush.clear();
            },
        ]),
    ),
    race(
        "a look at a frame that has no deferred flush any more",
        meet(&[
            |w| {
                if w.deferred_flush.is_clear() {
                    w.hw.own(0)
                }
            },
            use_and_reuse,
        ])
        .after(defer_there),
    ),
    race(
        "a look at a frame whose deferred flush is made",
        meet(&[own_if_flushed, use_and_flush]).after(defer_there),
    ),
    race(
        "a reuse while the deferred flush is taken",
        meet(&[World::flush_before_reuse, |w| {
            w.hw.access(0);
            w.unmap_lazily();
            w.hw.access(0);
        }]),
    ),
    race(
        "a look at a frame that was reused",
        meet(&[own_if_flushed, use_and_reuse]).after(defer_there),
    ),
    race(
        "the background flushes while a flush is deferred",
        meet(&[
            |w| w.engine.flush_deferred(),
            |w| {
                w.unmap_lazily();
                let _ = w.engine.flush_before_reuse(&w.deferred_flush);
                assert!(!w.hw.holds(1, 0), "C1: reused, and the CPU holds the page");
            },
        ]),
    ),
    race(
        "a CPU goes offline with a space that is retired",
        meet(&[retire, |w| {
            w.hw.look(0);
            w.engine.cpu_offline(Some(&w.space));
        }]),
    ),
    race(
        "a reuse that the background also flushes",
        meet(&[World::flush_before_reuse, use_and_flush]).after(defer_there),
    ),
    race(
        "a reuse against a flush",
        meet(&[World::flush_before_reuse, flush_whole]).after(defer_there),
    ),
    Race {
        preemptions: 3,
        ..race("a deferred flush against a flush", meet(&[defer_and_reuse, flush_whole]))
    },
    race(
        "a reuse against a CPU that leaves",
        meet(&[World::flush_before_reuse, leave]).after(defer_there),
    ),
    race(
        "a reuse against a CPU that goes idle",
        meet(&[World::flush_before_reuse, go_idle]).after(defer_there),
    ),
    race(
        "a reuse while the ledger is used again",
        meet(&[World::flush_before_reuse, |w| {
            w.hw.access(0);
            w.engine.flush_deferred();
            defer_other(w);
        }])
        .after(defer_there)
        .with_ledger(1),
    ),
    race(
        "a reuse of what another CPU has flushed, in a ledger that is used again",
        meet(&[
            |w| {
                defer_other(w);
                w.flush_before_reuse();
            },
            use_and_flush,
        ])
        .after(defer_there)
        .with_ledger(1),
    ),
    race(
        "a request comes while another is taken",
        meet(&[unmap_one_by_one, |_| ()])
            .after(run_both_pages_there)
            .under(Policy::only(Mechanism::RemoteFlush))
            .holding_up(&[PausePoint::Sent])
            .then(nothing_lost),
    ),
    race(
        "a request comes while another is written",
        meet(&[unmap_one_by_one, |_| ()])
            .after(run_both_pages_there)
            .under(Policy::only(Mechanism::RemoteFlush))
            .holding_up(&[PausePoint::Sent, PausePoint::Locked])
            .then(nothing_lost),
    ),
    race(
        "a CPU goes offline while its inbox is locked",
        meet(&[unmap_one_by_one, go_offline])
            .under(Policy::only(Mechanism::RemoteFlush))
            .holding_up(&[PausePoint::Locked]),
    ),
    race(
        "a CPU goes offline and comes back with a request in its inbox",
        meet(&[World::flush_before_reuse, |w| {
            w.engine.cpu_offline(Some(&w.space));
            w.engine.cpu_online();
        }])
        .after(defer_there)
        .holding_up(&[PausePoint::Sent]),
    ),
    race("a broadcast against an access", meet(&[unmap, use_page]).broadcasting()),
    race("a broadcast against a first load", meet(&[unmap, run]).after(|_| ()).broadcasting()),
    race(
        "two CPUs need tags",
        meet(&[|w| w.switch(None, &w.other), run]).after(|_| ()).broadcasting().then(tags_differ),
    ),
    race(
        "a tag rollover against a switch",
        meet(&[|w| w.switch(None, &w.third), load])
            .after(use_up_tags)
            .broadcasting()
            .then(tags_differ),
    ),
    race(
        "a tag rollover while a CPU changes its root",
        meet(&[
            |w| w.switch(Some(&w.space), &w.other),
            |w| w.switch(Some(&w.other), &w.third),
            free_table_there,
        ])
        .after(use_up_tags_elsewhere)
        .broadcasting(),
    ),
    free("zeroed frames change hands", pool),
    free("two CPUs take a lock", manager::lock),
    free("two CPUs lock a table", manager::lock_table),
    free("a reader meets a writer", manager::read_and_write),
    free("two CPUs write under one lock", manager::write_twice),
    free("a walk comes to a new table", manager::walk),
    free("a file is cut while a page beyond its end is made", manager::truncate),
];
