//! Generated programs: they kill mistakes without any scenario, find nothing in correct code, and do the same on any
//! number of threads.

use quell_adversary::generate::{Campaign, RecordedProgram, shrink};
use quell_adversary::{Budget, Case, Mistake, Scenario, Session, explore};
use quell_mutants::list::IN_COPY;

fn mistakes(names: &[&str]) -> Vec<Mistake> {
    let named = |name: &&str| Mistake::named(name).unwrap_or_else(|| panic!("no mistake `{name}`"));
    names.iter().map(named).collect()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    let mut campaign = Campaign::new(2, 1, Vec::new(), &[]);
    campaign.go_round();
    let found: Vec<_> = campaign
        .finds
        .iter()
        .map(|find| format!("{}\n{}", find.violation, find.recorded.to_toml()))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let (transitions, pairs) = campaign.seen();
    assert!(transitions > 0 && pairs > 0, "something happens in the programs");
    assert!(campaign.corpus().count() > 0);
}

/// Checks that a campaign has the same results with one thread and with two.
fn threads_make_no_difference(seed: u64, rounds: usize, sought: &[Mistake]) {
    let run = |threads: usize| {
        let mut campaign = Campaign::new(seed, threads, Vec::new(), sought);
        for _ in 0..rounds {
            campaign.go_round();
        }
        let corpus: Vec<_> = campaign.corpus().map(|kept| kept.to_line()).collect();
        let killed: Vec<_> = campaign
            .killed
            .iter()
            .map(|killed| (killed.mutant.name(), killed.programs, killed.schedules))
            .collect();
        (campaign.spent, killed, campaign.seen(), corpus)
    };
    let (one, two) = (run(1), run(2));
    assert_eq!((one.0, one.1, one.2), (two.0, two.1, two.2));
    assert!(one.3 == two.3, "the same programs are kept");
}

/// Includes programs whose CPUs are numbered from 62 on.
#[test]
fn the_number_of_threads_makes_no_difference() {
    threads_make_no_difference(23, 1, &mistakes(&["SkipInterrupt", "TablesFlushedAsLeaf"]));
}

/// A process shares a thousand pages with its child, and reclaims them in one call.
const LONG: &str = r#"
machine = "riscv"
policy = "all"
[program.calls.memory]
fast = 2200
[[program.calls.cpu]]
start = [
    { do = "map", large = false, page = 0, pages = 1000 },
    { do = "fill", page = 0, pages = 1000 },
]
run = [{ do = "fork" }, { do = "write", page = 3 }, { do = "reclaim", pages = 1000 }]
[[program.calls.cpu]]
run = [{ do = "write", page = 0 }]
"#;

#[test]
fn a_program_that_works_for_long_is_not_taken_for_one_that_never_ends() {
    let recorded = RecordedProgram::parse(LONG).expect("a program");
    let (violation, lines) = shrink::replay_lines(&recorded);
    assert_eq!(violation, None);
    let steps = lines.last().expect("it does something").at;
    assert!(steps > 60_000, "its run of {steps} steps is not long any more");
}

/// Memory is short while a large page is copied in base pages: each of these is allocated when nothing is left to
/// reclaim for it.
const SCARCE: &str = r#"
machine = "x86-broadcast"
policy = "all"
schedule = "1b1a.1-399.0-177.1-a5.0"
[program.calls.memory]
fast = 1040
slow = 4
[[program.calls.cpu]]
start = [
    { do = "map", large = true, page = 0, pages = 512 },
    { do = "write", page = 0 },
]
run = [{ do = "write", page = 0 }]
[[program.calls.cpu]]
start = [{ do = "fork" }]
run = [{ do = "discard", page = 0, pages = 1 }]
"#;

#[test]
fn an_allocation_does_not_look_at_all_of_memory_in_vain_again_and_again() {
    let recorded = RecordedProgram::parse(SCARCE).expect("a program");
    assert_eq!(shrink::replay(&recorded), None);
}

/// A page is reclaimed lazily, reinstated, and reclaimed lazily once more while its frame is still on the list of
/// frames with deferred flushes. As soon as the flush is deferred again, another CPU may reuse the frame.
const DEFERRED_TWICE: &str = r#"
machine = "riscv"
policy = "all"
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
"#;

/// Searches a program, which must hold.
pub(crate) fn holds(program: &str, schedules: u64) {
    assert_eq!(search(program, None, schedules), None);
}

fn search(program: &str, mistake: Option<Mistake>, schedules: u64) -> Option<explore::Failure> {
    let recorded = RecordedProgram::parse(program).expect("a program");
    let scenario = Scenario::generated("kept", &recorded.program);
    let case = Case { scenario: &scenario, kind: recorded.kind, policy: recorded.policy, mistake };
    let exploration =
        explore::Exploration { case, budget: Budget::Schedules(schedules), seed: 1, depth: 4 };
    explore::explore(&mut Session::new(case), &exploration, |_, _| true).failure
}

#[test]
fn a_frame_is_free_before_another_cpu_can_reuse_it() {
    holds(DEFERRED_TWICE, 1500);
}

/// One CPU truncates a file while another writes beyond its new end. Both outcomes are right.
const CUT: &str = r#"
machine = "x86-broadcast"
policy = "all"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "create", pages = 3 }]
run = [{ do = "truncate", file = 0, pages = 1 }]
[[program.calls.cpu]]
run = [{ do = "write-file", file = 0, page = 2 }]
"#;

#[test]
fn what_is_written_while_a_file_is_truncated_may_go() {
    holds(CUT, 200);
}

/// A page that a truncation has emptied becomes part of the file again, as zeros.
const LENGTHENED: &str = r#"
machine = "x86"
policy = "all"
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
"#;

#[test]
fn a_page_that_was_cut_off_may_come_back_as_zeros() {
    holds(LENGTHENED, 200);
    holds(&LENGTHENED.replace("page = 1", "page = 2"), 200);
}

/// A write and a truncation meet at one page. The page contains the written value, or is beyond the end.
const REWRITTEN: &str = r#"
machine = "x86"
policy = "all"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "create", pages = 1 }, { do = "write-file", file = 0, page = 0 }, { do = "sync", file = 0 }]
run = [{ do = "truncate", file = 0, pages = 0 }]
[[program.calls.cpu]]
run = [{ do = "write-file", file = 0, page = 0 }]
"#;

#[test]
fn what_a_write_has_put_behind_a_truncation_is_not_lost() {
    holds(REWRITTEN, 1000);
    let mistake = Mistake::named("VmLengthensUnlocked");
    assert!(
        !IN_COPY || mistake.is_some() && search(REWRITTEN, mistake, 1000).is_some(),
        "the page that a truncation has emptied behind a write is not missed"
    );
}

/// A migration takes hold of a frame that a fault has just allocated and not mapped yet.
const UNMAPPED: &str = r#"
machine = "arm-asid8"
policy = "all"

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
"#;

#[test]
fn a_page_that_no_entry_maps_is_not_moved() {
    holds(UNMAPPED, 8000);
}

/// A child runs before the fork that creates it has returned, and stores to a file that its parent maps.
const CHILD: &str = r#"
machine = "x86"
policy = "all"
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
"#;

#[test]
fn what_a_child_writes_before_its_fork_returns_may_be_there() {
    holds(CHILD, 600);
}

/// A CPU is taken offline, and another waits for its signal.
const LEFT: &str = r#"
machine = "x86"
policy = "all"
[[program.engine.cpu]]
run = [{ do = "offline" }, { do = "tell", flag = 4 }]
[[program.engine.cpu]]
run = [{ do = "wait", flag = 4 }]
"#;

#[test]
fn a_cpu_that_has_left_still_tells_those_that_wait_for_it() {
    holds(LEFT, 50);
    holds(&LEFT.replace("engine", "calls"), 50);
}

/// The kernel's text is written before a CPU comes online for the first time.
const PATCHED: &str = r#"
machine = "riscv-reordering"
policy = "all"
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
"#;

#[test]
fn a_cpu_that_comes_online_fetches_the_text_as_it_is() {
    holds(PATCHED, 50);
}

/// A CPU ends the process in which the others would begin.
const ENDED: &str = r#"
machine = "x86"
policy = "all"
[program.calls.memory]
[[program.calls.cpu]]
start = [{ do = "spawn" }, { do = "enter", process = 2 }, { do = "exit", process = 1 }]
run = [{ do = "write", page = 1 }]
[[program.calls.cpu]]
run = [{ do = "write", page = 1 }, { do = "enter", process = 2 }]
"#;

#[test]
fn a_cpu_whose_process_has_ended_begins_in_none() {
    holds(ENDED, 50);
}

/// The kernel's text is written while a CPU comes online. That CPU checks as early as a fence allows whether it was
/// written.
const PATCHED_MEANWHILE: &str = r#"
machine = "arm-reordering"
policy = "all"
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
    holds(PATCHED_MEANWHILE, 60_000);
}

/// One CPU unmaps a block of contiguous entries, or a part of it, while another stores there.
const BLOCK: &str = r#"
machine = "riscv"
policy = "all"
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

/// Checks that a program breaks the contract with this mistake, if the mistake can be made, and holds without it.
pub(crate) fn needs(program: &str, mistake: &str) {
    let mistake = Mistake::named(mistake).expect(mistake);
    holds(program, 300);
    assert!(
        mistake.is_of_source() && !IN_COPY || search(program, Some(mistake), 300).is_some(),
        "{}",
        mistake.name()
    );
}

#[test]
fn blocks_of_contiguous_entries_are_in_the_grammar() {
    for machine in ["riscv", "arm-asid8"] {
        let whole = BLOCK.replace("riscv", machine);
        needs(&whole, "BlockReportedAsPage");
        let part = whole.replace("page = 0, pages = 2", "page = 1, pages = 1");
        needs(&part, "BlockBrokenInPart");
        // Every other change of an entry also splits the block.
        for change in [
            r#"{ do = "migrate", space = 0, page = 1 },"#,
            r#"{ do = "move", space = 0, page = 1, to = 2 },"#,
            r#"{ do = "withdraw", space = 0, page = 1 },"#,
            r#"{ do = "protect", batch = 0, space = 0, page = 1, pages = 1, capture = true },"#,
        ] {
            let (before, after) = whole.split_once(r#"{ do = "unmap""#).expect("a line");
            let (_, after) = after.split_once('\n').expect("it ends");
            needs(&format!("{before}{change}\n{after}"), "BlockBrokenInPart");
        }
    }
}

/// A frame that a CPU uses leaves the machine. A third CPU is lazy in its space, and returns.
const WITHDRAWN: &str = r#"
machine = "riscv-reordering"
policy = "all"
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
    for machine in ["x86", "riscv-reordering"] {
        needs(&WITHDRAWN.replace("riscv-reordering", machine), "QuiesceTakesReceipt");
    }
}

/// Tests that need mistakes of the source. They run only in the copy that contains these: `cargo xtask ci mutants`.
#[cfg(quell_mutants)]
mod mutants {
    use super::*;

    /// Each of these removes one mechanism: the flush, the wait, the deferred flush, the zeroing.
    const EASY: [&str; 5] = [
        "SkipLocalFlush",
        "SkipWait",
        "PendingNotRecorded",
        "VmSkipsZeroing",
        "VmFreesTableBeforeFlush",
    ];

    #[test]
    fn mistakes_are_found_without_any_scenario() {
        let mut campaign = Campaign::new(1, 1, Vec::new(), &mistakes(&EASY));
        for _ in 0..40 {
            if campaign.is_over(true) {
                break;
            }
            campaign.go_round();
        }
        let alive: Vec<_> = campaign.alive.iter().map(|mistake| mistake.name()).collect();
        assert_eq!(alive, Vec::<&str>::new());
        assert_eq!(campaign.survival().last().map(|point| point.1), Some(0));
        for killed in &campaign.killed {
            let find = killed.find.as_ref().expect("a run has shown it");
            let again = shrink::replay(&find.recorded);
            assert_eq!(again.as_ref(), Some(&find.violation), "{}", killed.mutant.name());
        }
    }

    /// Checks a second round, which depends on the results of the first. Mutants of a kind are adjacent in the list, so
    /// every fourth one covers every kind.
    #[test]
    #[ignore = "seconds: `cargo xtask ci exhaustive`"]
    fn the_number_of_threads_makes_no_difference_to_a_second_round() {
        let some: Vec<Mistake> = Mistake::all().step_by(4).collect();
        threads_make_no_difference(5, 2, &some);
    }
}
