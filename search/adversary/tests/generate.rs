//! Generated programs: they kill mistakes without any scenario, find nothing in correct code, and do the same on any
//! number of threads.

use quell_adversary::Mistake;
use quell_adversary::generate::{Campaign, RecordedProgram, shrink};

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

/// Replays a recorded program, and checks that nothing is found.
fn replay(text: &str) {
    let recorded = RecordedProgram::parse(text).expect("a program");
    assert_eq!(shrink::replay(&recorded), None);
}

#[test]
fn an_allocation_does_not_look_at_all_of_memory_in_vain_again_and_again() {
    replay(SCARCE);
}

/// One CPU stores to a word of a file while the zeros of another CPU's truncation, which has returned, still wait in that
/// CPU's store buffer.
const WAITING_ZEROS: &str = r#"
machine = "riscv-many"
policy = "all"
schedule = "1.2-a.0"
[program.calls.memory]
fast = 32
[[program.calls.cpu]]
start = [
    { do = "create", pages = 1 },
    { do = "map-file", page = 0, pages = 1, file = 0, from = 0, shared = true, write = true },
    { do = "write", page = 0 },
]
[[program.calls.cpu]]
run = [{ do = "write", page = 0, word = 1 }]
[[program.calls.cpu]]
run = [{ do = "truncate", file = 0, pages = 0, word = 1 }]
"#;

#[test]
fn a_truncation_may_zero_a_word_after_it_has_returned() {
    replay(WAITING_ZEROS);
}

/// Memory runs out while a range moves to a place where other pages were mapped. They are lost, as with `mremap`, and the
/// store there is refused.
const LOST_PLACE: &str = r#"
machine = "x86"
policy = "all"
[program.calls.memory]
fast = 6
ahead = 1
cache = 1
[[program.calls.cpu]]
run = [
    { do = "enter", process = 2 },
    { do = "map", large = false, page = 1, pages = 1 },
    { do = "write", page = 1 },
]
[[program.calls.cpu]]
start = [{ do = "spawn" }, { do = "map", large = false, page = 512, pages = 1 }]
run = [{ do = "remap", page = 1, pages = 4, to = 512 }, { do = "write", page = 512 }]
[[program.calls.cpu]]
start = [
    { do = "map", large = false, page = 2, pages = 3 },
    { do = "map", large = false, page = 1, pages = 3 },
    { do = "write", page = 1 },
]
"#;

#[test]
fn a_move_that_runs_out_of_memory_may_lose_what_was_mapped_at_the_new_place() {
    replay(LOST_PLACE);
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
