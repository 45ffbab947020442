//! The races that are lost if an ordering is one step weaker, by function.
//!
//! A function with several orderings lists the races of all of them, quick ones first. `places` finds the orderings
//! themselves, because races pass them.

const ASID: &str = "engine/quell/src/asid.rs";
const CPU: &str = "engine/quell/src/cpu.rs";
const FLUSH: &str = "engine/quell/src/flush.rs";
const INBOX: &str = "engine/quell/src/inbox.rs";
const SHARED_INBOX: &str = "engine/quell/src/shared_inbox.rs";
const COALESCED: &str = "engine/quell/src/coalesced.rs";
const LAZY: &str = "engine/quell/src/lazy.rs";
const LEDGER: &str = "engine/quell/src/ledger.rs";
const SPACE: &str = "engine/quell/src/space.rs";
const POOL: &str = "engine/quell-zero/src/pool.rs";
const VM_LENGTH: &str = "testbed/vm/src/length.rs";
const VM_LOCK: &str = "testbed/vm/src/lock.rs";
const VM_TABLE_LOCK: &str = "testbed/vm/src/table_lock.rs";
const VM_TABLE_ID: &str = "testbed/vm/src/table_id.rs";

/// Each file and function, and a race.
pub const LOST: &[(&str, &str, &str)] = &[
    (ASID, "acquire", "a tag rollover while a CPU changes its root"),
    (ASID, "acquire", "two CPUs need tags"),
    (ASID, "roll_over", "a tag rollover while a CPU changes its root"),
    (CPU, "must_be_asked", "an idle CPU comes back"),
    (CPU, "leave_to_entry", "a program enters the kernel, whose mappings change"),
    (CPU, "leave_to_entry", "a program is returned to while the kernel's mappings change"),
    (CPU, "has_flushed_since", "a CPU goes offline and comes back while it is asked to flush"),
    (CPU, "declare_running", "an idle CPU loads a space while it is flushed"),
    (CPU, "end_switch", "a reuse against a CPU that leaves"),
    (CPU, "go_lazy", "a CPU goes idle while its space is flushed"),
    (CPU, "wake", "an idle CPU comes back"),
    (CPU, "enter_user", "a program is returned to while the kernel's mappings change"),
    (
        CPU,
        "enter_kernel",
        "a program that has a deferred flush enters the kernel, whose mappings change",
    ),
    (CPU, "detach", "a CPU goes offline while it is asked"),
    (CPU, "publish", "a refill against a reuse"),
    (FLUSH, "posting", "a CPU comes online while the kernel's mappings change"),
    (INBOX, "post", "a CPU goes offline while it is asked"),
    (INBOX, "post", "a request comes while another is written"),
    (INBOX, "post", "a CPU goes offline while its inbox is locked"),
    (INBOX, "post", "a request comes while another is taken"),
    (INBOX, "awaited", "a CPU goes offline while it is asked"),
    (INBOX, "has_reached", "a flush that waits until it is done"),
    (INBOX, "serve", "a flush that waits until it is done"),
    (INBOX, "serve", "a request comes while another is taken"),
    (INBOX, "take", "a request comes while another is taken"),
    (INBOX, "close", "a CPU goes offline while it is asked"),
    (INBOX, "close", "a CPU goes offline while its receipt is awaited"),
    (INBOX, "open", "a CPU goes offline and comes back with a request in its inbox"),
    (SHARED_INBOX, "post", "a handler finds a shared request that no interrupt announced"),
    (SHARED_INBOX, "state", "a shared flush that waits for the receipt"),
    (SHARED_INBOX, "end", "a shared flush that waits for the receipt"),
    (SHARED_INBOX, "is_last", "two targets answer a shared flush"),
    (SHARED_INBOX, "pending", "a handler finds a shared request that no interrupt announced"),
    (SHARED_INBOX, "deferring", "a CPU is quiesced after a shared flush"),
    (SHARED_INBOX, "finish", "a CPU is quiesced after a shared flush"),
    (COALESCED, "take_number", "two tasks share a flush"),
    (COALESCED, "lead", "two tasks share a flush"),
    (COALESCED, "served", "two tasks share a flush"),
    (COALESCED, "end", "two tasks share a flush"),
    (LAZY, "is_clear", "a look at a frame that has no deferred flush any more"),
    (LAZY, "defer", "a reuse while the deferred flush is taken"),
    (LAZY, "clear", "a refill against a deferred flush that becomes none"),
    (LAZY, "reinstate", "reinstating too late"),
    (LAZY, "flush_before_reuse", "a reuse while the deferred flush is taken"),
    (LAZY, "flush_before_reuse", "reinstating too late"),
    (LAZY, "is_flushed", "a look at a frame that was reused"),
    (LAZY, "flush_before_refill", "a refill against a reuse"),
    (LEDGER, "now", "a deferred flush against a flush"),
    (LEDGER, "is_flushed_up_to", "a refill against a reuse"),
    (LEDGER, "is_flushed_alone", "a refill against a reuse"),
    (
        LEDGER,
        "take_entry",
        "a reuse of what another CPU has flushed, in a ledger that is used again",
    ),
    (LEDGER, "record", "a reuse while the ledger is used again"),
    (LEDGER, "record", "the background flushes while a flush is deferred"),
    (LEDGER, "deferred_at", "the background flushes while a flush is deferred"),
    (LEDGER, "deferred_at", "a reuse while the ledger is used again"),
    (LEDGER, "mark_flushed", "a refill against a reuse"),
    (LEDGER, "advance_flushed_up_to", "a refill against a reuse"),
    (LEDGER, "tick", "a deferred flush against a flush"),
    (LEDGER, "unflushed", "a refill against a reuse"),
    (SPACE, "flushes", "an idle CPU comes back"),
    (SPACE, "deferred", "two later observers meet a deferred flush"),
    (SPACE, "next_generation", "an idle CPU comes back"),
    (SPACE, "begin_batch", "a space is loaded while it is flushed"),
    (SPACE, "end_batch", "an idle CPU comes back to a deferred flush"),
    (SPACE, "end_batch_alone", "a later observer meets a batch that flushes alone"),
    (SPACE, "deferred_flushed", "two later observers meet a deferred flush"),
    (SPACE, "overflow", "two later observers meet a change that no batch counts"),
    (SPACE, "overflow_flushed", "two later observers meet a change that no batch counts"),
    (SPACE, "enter", "a space is loaded while it is flushed"),
    (SPACE, "leave", "a CPU leaves a space while it is flushed"),
    (SPACE, "read_loaded", "a space is loaded while a deferred flush is taken"),
    (SPACE, "is_loaded_only_on", "a space is loaded while it is flushed"),
    (POOL, "take", "zeroed frames change hands"),
    (POOL, "insert", "zeroed frames change hands"),
    (VM_LENGTH, "get", "a file is cut while a page beyond its end is made"),
    (VM_LENGTH, "set", "a file is cut while a page beyond its end is made"),
    (VM_LOCK, "try_acquire", "two CPUs take a lock"),
    (VM_LOCK, "release", "two CPUs take a lock"),
    (VM_LOCK, "read", "a reader meets a writer"),
    (VM_LOCK, "write", "a reader meets a writer"),
    (VM_LOCK, "downgrade", "a reader meets a writer"),
    (VM_LOCK, "drop", "a reader meets a writer"),
    (VM_TABLE_LOCK, "lock", "two CPUs lock a table"),
    (VM_TABLE_LOCK, "next", "two CPUs lock a table"),
    (VM_TABLE_LOCK, "drop", "two CPUs lock a table"),
    (VM_TABLE_ID, "get", "a walk comes to a new table"),
    (VM_TABLE_ID, "set", "a walk comes to a new table"),
];
