//! The grammars of generated programs. Some programs once broke the contract, or the judge took them for wrong. Others
//! break it with a mistake that no program without a certain operation can show.

use crate::search;
use quell_adversary::generate::RecordedProgram;
use quell_adversary::{Budget, Case, Scenario};
use quell_mutants::list::IN_COPY;

/// Programs that hold in this many schedules, and with the mistake that they name, if any, don't.
const SCHEDULES: u64 = 1500;
const PROGRAMS: &[&str] = &[
    // A page is reclaimed lazily, reinstated, and reclaimed lazily once more while its frame is still on the list of
    // frames with deferred flushes. As soon as the flush is deferred again, another CPU may reuse the frame.
    r#"
machine = "riscv"
[program.calls.memory]
fast = 7
[[program.calls.cpu]]
start = [
    { do = "create", pages = 2 },
    { do = "write-file", file = 0, page = 0 },
    { do = "sync", file = 0 },
    { do = "map", large = false, page = 1, pages = 1 },
    { do = "map", large = false, page = 0, pages = 1 },
]
run = [{ do = "reclaim", pages = 2 }]
[[program.calls.cpu]]
run = [
    { do = "write", page = 1 },
    { do = "write", page = 0 },
    { do = "read-file", file = 0, page = 1 },
]
[[program.calls.cpu]]
run = [{ do = "read-file", file = 0, page = 0 }]
"#,
    // One CPU truncates a file while another writes beyond its new end. Both outcomes are right.
    r#"
machine = "x86-broadcast"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "create", pages = 3 }]
run = [{ do = "truncate", file = 0, pages = 1 }]
[[program.calls.cpu]]
run = [{ do = "write-file", file = 0, page = 2 }]
"#,
    // A page that a truncation has emptied becomes part of the file again, as zeros.
    r#"
machine = "x86"
[program.calls.memory]
[[program.calls.cpu]]
start = [
    { do = "create", pages = 1 },
    { do = "write-file", file = 0, page = 0 },
    { do = "truncate", file = 0, pages = 0 },
]
run = [{ do = "write-file", file = 0, page = 1 }]
[[program.calls.cpu]]
run = [{ do = "truncate", file = 0, pages = 1 }, { do = "write-file", file = 0, page = 1 }]
"#,
    // A write and a truncation meet at one page. The page contains the written value, or is beyond the end.
    r#"
machine = "x86"
mistake = "VmLengthensUnlocked"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "create", pages = 1 }, { do = "write-file", file = 0, page = 0 }, { do = "sync", file = 0 }]
run = [{ do = "truncate", file = 0, pages = 0 }]
[[program.calls.cpu]]
run = [{ do = "write-file", file = 0, page = 0 }]
"#,
    // A child runs before the fork that creates it has returned, and stores to a file that its parent maps.
    r#"
machine = "x86"
[program.calls.memory]
[[program.calls.cpu]]
start = [
    { do = "create", pages = 3 },
    { do = "map-file", file = 0, from = 0, page = 1, pages = 2, shared = true, write = true },
    { do = "write", page = 1 },
]
run = [{ do = "fork" }, { do = "fork" }]
[[program.calls.cpu]]
run = [{ do = "enter", process = 3 }, { do = "write", page = 1 }]
"#,
    // A CPU is taken offline, and another waits for its signal.
    r#"
machine = "x86"
[[program.engine.cpu]]
run = [{ do = "offline" }, { do = "tell", flag = 4 }]
[[program.engine.cpu]]
run = [{ do = "wait", flag = 4 }]
"#,
    // The kernel's text is written before a CPU comes online for the first time.
    r#"
machine = "riscv-reordering"
[program.engine.shape]
files = [3, 3, 3]
ledger = 2
spaces = 1
tags = 2
[[program.engine.cpu]]
start = [{ do = "map-own", own = 1 }, { do = "patch", own = 1 }]
run = []
[[program.engine.cpu]]
run = [{ do = "run-own", own = 1 }]
"#,
    // A CPU ends the process in which the others would begin.
    r#"
machine = "x86"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "spawn" }, { do = "enter", process = 2 }, { do = "exit", process = 1 }]
run = [{ do = "write", page = 1 }]
[[program.calls.cpu]]
run = [{ do = "write", page = 1 }, { do = "enter", process = 2 }]
"#,
    // A later observer comes between the end of a lazy batch and its stamp.
    r#"
machine = "x86"
mistake = "PendingEndsBeforeDeferred"
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
"#,
    // A hypervisor has descheduled a CPU whose space ends.
    r#"
machine = "x86"
mistake = "RetirementLeftToReentry"
[program.engine.shape]
spaces = 2
unscheduled = 2
[[program.engine.cpu]]
run = [{ do = "retire", space = 0 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }, { do = "lazy" }]
run = [{ do = "switch", space = 1 }]
"#,
    // A table is freed without a batch while a CPU is idle that had left its root before.
    r#"
machine = "x86"
mistake = "LazySkippedForTables"
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
"#,
    // A program stores behind the end of a file, in its last page, and then truncates the file to the length that it has.
    r#"
machine = "x86"
mistake = "VmTruncatesOnlyShorter"
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
"#,
];

/// Programs that need more schedules.
const MANY: u64 = 20_000;
const OF_MANY: &[&str] = &[
    // A migration takes hold of a frame that a fault has just allocated and not mapped yet.
    r#"
machine = "arm-asid8"

[program.calls.memory]
slow = 4

[[program.calls.cpu]]
start = [
    { do = "create", pages = 2 },
    { do = "map-file", file = 0, from = 0, page = 0, pages = 2, shared = false, write = true },
    { do = "write", page = 0 },
    { do = "write", page = 1 },
]
run = [
    { do = "discard", page = 0, pages = 1 },
    { do = "write", page = 0 },
]

[[program.calls.cpu]]
run = [{ do = "migrate", node = 1, page = 0, pages = 2 }]
"#,
    // A CPU becomes idle, and is descheduled by its hypervisor, before its stores are visible. Others must see its last
    // announcement last.
    r#"
machine = "x86-pcid"
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
"#,
];

#[test]
fn programs_hold_and_show_the_mistakes_that_they_name() {
    for (programs, schedules) in [(PROGRAMS, SCHEDULES), (OF_MANY, MANY)] {
        programs.iter().for_each(|program| check(program, schedules));
    }
}

/// Checks that a program holds, and breaks the contract with its mistake if that can be made.
fn check(program: &str, schedules: u64) {
    let text = format!("policy = \"all\"\n{program}");
    let recorded = RecordedProgram::parse(&text).expect("a program");
    let scenario = Scenario::generated("kept", &recorded.program);
    let broken = |mistake| {
        let (kind, policy) = (recorded.kind, recorded.policy);
        let case = Case { scenario: &scenario, kind, policy, mistake };
        search(case, Budget::Schedules(schedules)).failure
    };
    assert_eq!(broken(None), None, "{program}");
    if let Some(mistake) = recorded.mistake.filter(|mistake| !mistake.is_of_source() || IN_COPY) {
        assert!(broken(Some(mistake)).is_some(), "{program}");
    }
}

/// Checks a program with a mistake.
fn needs(program: &str, mistake: &str) {
    check(&format!("mistake = \"{mistake}\"\n{program}"), 300);
}

/// Replaces a part of a program, which must be there.
fn with(program: &str, part: &str, other: &str) -> String {
    assert!(program.contains(part), "{part}");
    program.replace(part, other)
}

#[test]
fn variants_of_these_programs_hold() {
    let of = |part: &str| *PROGRAMS.iter().find(|program| program.contains(part)).expect(part);
    let lengthened = of("page = 1 }]\n[[program.calls.cpu]]\nrun = [{ do = \"truncate\"");
    check(&with(lengthened, "page = 1", "page = 2"), 200);
    check(&with(of("flag = 4"), "engine", "calls"), 50);
}

/// The kernel's text is written while a CPU comes online. That CPU checks as early as a fence allows whether it was
/// written.
const PATCHED_MEANWHILE: &str = r#"
machine = "arm-reordering"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [{ do = "map-own", own = 2 }]
run = [{ do = "offline" }, { do = "online" }, { do = "wait", flag = 0 }, { do = "run-own", own = 2 }]
[[program.engine.cpu]]
run = [{ do = "patch", own = 2 }, { do = "tell", flag = 0 }]
"#;

#[test]
fn no_load_after_a_fence_is_satisfied_before_a_frame_was_written() {
    check(PATCHED_MEANWHILE, 60_000);
}

/// A process has its own copy of a page beyond the end of a file. One CPU copies it once more, after a fork, and empties
/// the entry meanwhile, because the machine wants that. Another CPU loads from the page.
const COPY_BEYOND_END: &str = r#"
machine = "riscv"
[[program.calls.cpu]]
start = [
    { do = "create", pages = 1 },
    { do = "map-file", page = 1, pages = 1, file = 0, from = 0, shared = false, write = true },
    { do = "write", page = 1 },
    { do = "truncate", file = 0, pages = 0 },
    { do = "fork" },
]
run = [{ do = "write", page = 1 }]
[[program.calls.cpu]]
run = [{ do = "read", page = 1 }]
"#;

#[test]
fn a_copy_beyond_the_end_of_its_file_stays_while_it_is_copied() {
    check(COPY_BEYOND_END, 1000);
}

/// Two CPUs unmap pages of a third one, and share the flushes.
const COALESCED: &str = r#"
machine = "x86"
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
    // A page is mapped again while the shared flush of its predecessor is outstanding. The CPU that takes the lock
    // meanwhile flushes first.
    let again = with(
        COALESCED,
        r#"run = [{ do = "unmap-coalesced", space = 0, page = 1 }]"#,
        r#"run = [{ do = "confirm", space = 0, page = 0, pages = 1 }]"#,
    );
    check(&again, 300);
}

/// One CPU unmaps a block of contiguous entries, or a part of it, while another stores there.
const BLOCK: &str = r#"
machine = "riscv"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [{ do = "map-block", space = 0, page = 0 }, { do = "switch", space = 0 }]
run = [
    { do = "open", batch = 0, purpose = "call" },
    { do = "unmap", batch = 0, space = 0, page = 0, pages = 2, report = "each" },
    { do = "finish", batch = 0 },
]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }]
run = [{ do = "write", page = 1 }, { do = "write", page = 1 }]
"#;

#[test]
fn blocks_of_contiguous_entries_are_in_the_grammar() {
    let unmap = r#"{ do = "unmap", batch = 0, space = 0, page = 0, pages = 2, report = "each" },"#;
    for machine in ["riscv", "arm-asid8"] {
        let whole = with(BLOCK, "riscv", machine);
        needs(&whole, "BlockReportedAsPage");
        // Every other change of an entry splits the block.
        for change in [
            r#"{ do = "unmap", batch = 0, space = 0, page = 1, pages = 1, report = "each" },"#,
            r#"{ do = "migrate", space = 0, page = 1 },"#,
            r#"{ do = "move", space = 0, page = 1, to = 2 },"#,
            r#"{ do = "withdraw", space = 0, page = 1 },"#,
            r#"{ do = "protect", batch = 0, space = 0, page = 1, pages = 1, capture = true },"#,
        ] {
            needs(&with(&whole, unmap, change), "BlockBrokenInPart");
        }
    }
}

/// A frame that a CPU uses leaves the machine. A third CPU is lazy in its space, and returns.
const WITHDRAWN: &str = r#"
machine = "riscv-reordering"
[program.engine.shape]
spaces = 1
[[program.engine.cpu]]
start = [{ do = "map", space = 0, page = 1, write = true }]
run = [{ do = "withdraw", space = 0, page = 1 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }]
run = [{ do = "read", page = 1 }, { do = "read", page = 1 }]
[[program.engine.cpu]]
start = [{ do = "switch", space = 0 }, { do = "lazy" }]
run = [{ do = "switch", space = 0 }]
"#;

#[test]
fn frames_that_bear_no_speculation_are_in_the_grammar() {
    needs(WITHDRAWN, "QuiesceTakesReceipt");
    needs(&with(WITHDRAWN, "riscv-reordering", "x86"), "QuiesceTakesReceipt");
}
