//! The grammars of generated programs. Each small program here breaks the contract with a mistake that
//! no program without a certain operation can show.

use crate::generate::{holds, needs};

/// A later observer comes between the end of a lazy batch and its stamp.
const DEFERRED_LATE: &str = r#"
machine = "x86"
policy = "all"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [{ do = "map-file", space = 0, file = 0, write = false }]
run = [{ do = "reclaim-lazily", files = 1 }]
[[program.engine.cpu]]
run = [{ do = "confirm", space = 0, page = 3, pages = 1 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }]
run = [{ do = "read", page = 3 }, { do = "read", page = 3 }]
"#;

#[test]
fn a_space_is_unlocked_before_its_flush_is_deferred() {
    needs(DEFERRED_LATE, "PendingEndsBeforeDeferred");
}

/// A hypervisor has descheduled a CPU whose space ends.
const UNSCHEDULED: &str = r#"
machine = "x86"
policy = "all"
[program.engine.shape]
spaces = 2
unscheduled = 2
[[program.engine.cpu]]
run = [{ do = "retire", space = 0 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }, { do = "lazy" }]
run = [{ do = "switch", space = 1 }]
"#;

#[test]
fn virtual_cpus_that_do_not_run_are_in_the_grammar() {
    needs(UNSCHEDULED, "RetirementLeftToReentry");
}

/// A table is freed without a batch while a CPU is idle that had left its root before.
const AT_ONCE: &str = r#"
machine = "x86"
policy = "all"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [
    { do = "map", space = 0, page = 1, write = true },
    { do = "unmap-at-once", space = 0, page = 1, whole = false },
]
run = [{ do = "unlink-at-once", space = 0, window = 0, whole = false }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }, { do = "leave" }, { do = "switch", space = 0 }, { do = "lazy" }]
run = [{ do = "resume" }]
"#;

#[test]
fn flushes_without_a_batch_and_cpus_that_come_back_are_in_the_grammar() {
    needs(AT_ONCE, "LazySkippedForTables");
}

/// Two CPUs unmap pages of a third one, and share the flushes.
const COALESCED: &str = r#"
machine = "x86"
policy = "all"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [{ do = "map", space = 0, page = 0, write = true }]
run = [{ do = "unmap-coalesced", space = 0, page = 0 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }]
run = [
    { do = "read", page = 1 }, { do = "read", page = 0 }, { do = "read", page = 1 },
    { do = "read", page = 0 }, { do = "read", page = 1 },
]
[[program.engine.cpu]]
start = [{ do = "map", space = 0, page = 1, write = true }]
run = [{ do = "unmap-coalesced", space = 0, page = 1 }]
"#;

#[test]
fn flushes_that_tasks_share_are_in_the_grammar() {
    needs(COALESCED, "CoalescedLate");
    needs(COALESCED, "CoalescerSkipsWait");
}

/// A page is mapped again while the shared flush of its predecessor is outstanding.
#[test]
fn who_takes_the_lock_while_a_shared_flush_is_outstanding_flushes_first() {
    let again = COALESCED.replace(
        r#"run = [{ do = "unmap-coalesced", space = 0, page = 1 }]"#,
        r#"run = [{ do = "confirm", space = 0, page = 0, pages = 1 }]"#,
    );
    assert_ne!(again, COALESCED);
    holds(&again, 300);
}

/// A CPU becomes idle, and is descheduled by its hypervisor, before its stores are visible. Others must see its last
/// announcement last.
const LEFT_BUFFERED: &str = r#"
machine = "x86-pcid"
policy = "all"
[program.engine.shape]
spaces = 1
ledger = 2
tags = 2
unscheduled = 2
[[program.engine.cpu]]
start = [{ do = "map-file", file = 1, space = 0, write = false }]
run = [{ do = "reclaim-lazily", files = 2 }, { do = "reuse", file = 1 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }]
run = [
    { do = "lazy" },
    { batch = 0, do = "open", purpose = "call" },
    { do = "switch", space = 0 },
    { do = "lazy" },
    { do = "retire", space = 0 },
]
"#;

#[test]
fn a_cpu_that_does_not_run_has_stored_in_its_order() {
    holds(LEFT_BUFFERED, 20_000);
}

/// A program stores behind the end of a file, in its last page, and then truncates the file to the length that it has.
const BEHIND_END: &str = r#"
machine = "x86"
policy = "all"
[program.calls.memory]
[[program.calls.cpu]]
start = [
    { do = "create", pages = 0 },
    { do = "truncate", file = 0, pages = 0, word = 1 },
    { do = "map-file", page = 0, pages = 1, file = 0, from = 0, shared = true, write = true },
]
run = [
    { do = "write", page = 0, word = 1 },
    { do = "truncate", file = 0, pages = 0, word = 1 },
    { do = "read", page = 0, word = 1 },
]
[[program.calls.cpu]]
run = [{ do = "read", page = 0 }]
"#;

#[test]
fn stores_behind_the_end_of_a_file_are_in_the_grammar() {
    needs(BEHIND_END, "VmTruncatesOnlyShorter");
}
