//! The races that are lost if an ordering is one step weaker, by function.
//!
//! A function with several orderings lists the races of all of them, quick ones first. `places` finds the orderings
//! themselves, because races pass them.

/// Each file, function, and its races.
pub const LOST: &[(&str, &str, &[&str])] = &[
    (
        "engine/quell/src/asid.rs",
        "acquire",
        &[
            "a tag rollover while a CPU changes its root",
            "two CPUs need tags",
        ],
    ),
    (
        "engine/quell/src/asid.rs",
        "roll_over",
        &["a tag rollover while a CPU changes its root"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "must_be_asked",
        &["an idle CPU comes back"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "leave_to_entry",
        &[
            "a program enters the kernel, whose mappings change",
            "a program is returned to while the kernel's mappings change",
        ],
    ),
    (
        "engine/quell/src/cpu.rs",
        "has_flushed_since",
        &["a CPU goes offline and comes back while it is asked to flush"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "declare_running",
        &["an idle CPU loads a space while it is flushed"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "end_switch",
        &["a reuse against a CPU that leaves"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "go_lazy",
        &["a CPU goes idle while its space is flushed"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "wake",
        &["an idle CPU comes back"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "enter_user",
        &["a program is returned to while the kernel's mappings change"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "enter_kernel",
        &["a program that has a deferred flush enters the kernel, whose mappings change"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "detach",
        &["a CPU goes offline while it is asked"],
    ),
    (
        "engine/quell/src/cpu.rs",
        "publish",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/flush.rs",
        "posting",
        &["a CPU comes online while the kernel's mappings change"],
    ),
    (
        "engine/quell/src/inbox.rs",
        "post",
        &[
            "a CPU goes offline while it is asked",
            "a request comes while another is written",
            "a CPU goes offline while its inbox is locked",
            "a request comes while another is taken",
        ],
    ),
    (
        "engine/quell/src/inbox.rs",
        "awaited",
        &["a CPU goes offline while it is asked"],
    ),
    (
        "engine/quell/src/inbox.rs",
        "has_reached",
        &["a flush that waits until it is done"],
    ),
    (
        "engine/quell/src/inbox.rs",
        "serve",
        &[
            "a flush that waits until it is done",
            "a request comes while another is taken",
        ],
    ),
    (
        "engine/quell/src/inbox.rs",
        "take",
        &["a request comes while another is taken"],
    ),
    (
        "engine/quell/src/inbox.rs",
        "close",
        &[
            "a CPU goes offline while it is asked",
            "a CPU goes offline while its receipt is awaited",
        ],
    ),
    (
        "engine/quell/src/inbox.rs",
        "open",
        &["a CPU goes offline and comes back with a request in its inbox"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "post",
        &["a handler finds a shared request that no interrupt announced"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "state",
        &["a shared flush that waits for the receipt"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "end",
        &["a shared flush that waits for the receipt"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "is_last",
        &["two targets answer a shared flush"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "pending",
        &["a handler finds a shared request that no interrupt announced"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "deferring",
        &["a CPU is quiesced after a shared flush"],
    ),
    (
        "engine/quell/src/shared_inbox.rs",
        "finish",
        &["a CPU is quiesced after a shared flush"],
    ),
    (
        "engine/quell/src/coalesced.rs",
        "take_number",
        &["two tasks share a flush"],
    ),
    (
        "engine/quell/src/coalesced.rs",
        "lead",
        &["two tasks share a flush"],
    ),
    (
        "engine/quell/src/coalesced.rs",
        "served",
        &["two tasks share a flush"],
    ),
    (
        "engine/quell/src/coalesced.rs",
        "end",
        &["two tasks share a flush"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "is_clear",
        &["a look at a frame that has no deferred flush any more"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "defer",
        &["a reuse while the deferred flush is taken"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "clear",
        &["a refill against a deferred flush that becomes none"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "reinstate",
        &["reinstating too late"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "flush_before_reuse",
        &[
            "a reuse while the deferred flush is taken",
            "reinstating too late",
        ],
    ),
    (
        "engine/quell/src/lazy.rs",
        "is_flushed",
        &["a look at a frame that was reused"],
    ),
    (
        "engine/quell/src/lazy.rs",
        "flush_before_refill",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "now",
        &["a deferred flush against a flush"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "is_flushed_up_to",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "is_flushed_alone",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "take_entry",
        &["a reuse of what another CPU has flushed, in a ledger that is used again"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "record",
        &[
            "a reuse while the ledger is used again",
            "the background flushes while a flush is deferred",
        ],
    ),
    (
        "engine/quell/src/ledger.rs",
        "deferred_at",
        &[
            "the background flushes while a flush is deferred",
            "a reuse while the ledger is used again",
        ],
    ),
    (
        "engine/quell/src/ledger.rs",
        "mark_flushed",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "advance_flushed_up_to",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "tick",
        &["a deferred flush against a flush"],
    ),
    (
        "engine/quell/src/ledger.rs",
        "unflushed",
        &["a refill against a reuse"],
    ),
    (
        "engine/quell/src/space.rs",
        "flushes",
        &["an idle CPU comes back"],
    ),
    (
        "engine/quell/src/space.rs",
        "deferred",
        &["two later observers meet a deferred flush"],
    ),
    (
        "engine/quell/src/space.rs",
        "next_generation",
        &["an idle CPU comes back"],
    ),
    (
        "engine/quell/src/space.rs",
        "begin_batch",
        &["a space is loaded while it is flushed"],
    ),
    (
        "engine/quell/src/space.rs",
        "end_batch",
        &["an idle CPU comes back to a deferred flush"],
    ),
    (
        "engine/quell/src/space.rs",
        "end_batch_alone",
        &["a later observer meets a batch that flushes alone"],
    ),
    (
        "engine/quell/src/space.rs",
        "deferred_flushed",
        &["two later observers meet a deferred flush"],
    ),
    (
        "engine/quell/src/space.rs",
        "overflow",
        &["two later observers meet a change that no batch counts"],
    ),
    (
        "engine/quell/src/space.rs",
        "overflow_flushed",
        &["two later observers meet a change that no batch counts"],
    ),
    (
        "engine/quell/src/space.rs",
        "enter",
        &["a space is loaded while it is flushed"],
    ),
    (
        "engine/quell/src/space.rs",
        "leave",
        &["a CPU leaves a space while it is flushed"],
    ),
    (
        "engine/quell/src/space.rs",
        "read_loaded",
        &["a space is loaded while a deferred flush is taken"],
    ),
    (
        "engine/quell/src/space.rs",
        "is_loaded_only_on",
        &["a space is loaded while it is flushed"],
    ),
    (
        "engine/quell-zero/src/pool.rs",
        "take",
        &["zeroed frames change hands"],
    ),
    (
        "engine/quell-zero/src/pool.rs",
        "insert",
        &["zeroed frames change hands"],
    ),
    (
        "testbed/vm/src/length.rs",
        "get",
        &["a file is cut while a page beyond its end is made"],
    ),
    (
        "testbed/vm/src/length.rs",
        "set",
        &["a file is cut while a page beyond its end is made"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "try_acquire",
        &["two CPUs take a lock"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "release",
        &["two CPUs take a lock"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "read",
        &["a reader meets a writer"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "write",
        &["a reader meets a writer"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "downgrade",
        &["a reader meets a writer"],
    ),
    (
        "testbed/vm/src/lock.rs",
        "drop",
        &["a reader meets a writer"],
    ),
    (
        "testbed/vm/src/table_lock.rs",
        "lock",
        &["two CPUs lock a table"],
    ),
    (
        "testbed/vm/src/table_lock.rs",
        "next",
        &["two CPUs lock a table"],
    ),
    (
        "testbed/vm/src/table_lock.rs",
        "drop",
        &["two CPUs lock a table"],
    ),
    (
        "testbed/vm/src/table_id.rs",
        "get",
        &["a walk comes to a new table"],
    ),
    (
        "testbed/vm/src/table_id.rs",
        "set",
        &["a walk comes to a new table"],
    ),
];
