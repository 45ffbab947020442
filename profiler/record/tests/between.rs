//! What is known of interrupts between windows: who sent each, and of some how long their initiators waited.

use quell_record::perf::{Interrupts, Item, Lost, Sample, Statistics, Value, When, Why};
use quell_record::report::Report;

use crate::advice::{Filled, recorded_with};
use crate::answer::{one, ran, recorded};
use crate::written::{asked_between, sample, work};

/// Flushes of the server that were recorded between windows alone, one each 200 us: from its CPU 0 these targets are asked, a
/// microsecond apart, and 30 us after the first was asked the one with this number says that it is done, in each third flush.
fn between(flushes: u64, targets: &[u32], says: u32) -> Report {
    let mut all = recorded("the command server", 0, 0, true);
    let of = |target: u32| {
        let mut fields = work();
        fields[0].1 = Value::Unsigned(target.into());
        fields[1].1 = Value::Unsigned(u64::from(target) + 5);
        fields
    };
    for flush in 0..flushes {
        let at = 1_000_000 + flush * 200_000;
        for (later, &target) in (0..).zip(targets) {
            let queued = sample(
                at + later * 1_000,
                (7, "server"),
                "between:csd_queue_cpu",
                of(target),
            );
            all.item(Item::Sample(queued), &mut ());
        }
        if flush % 3 == 0 {
            let name = "between:csd_function_exit";
            let mut done = sample(at + 30_000, (9, "compiler"), name, of(says));
            done.cpu = says;
            all.item(Item::Sample(done), &mut ());
        }
    }
    all.item(ran(), &mut ());
    Report::new(all, None)
}

#[test]
fn what_was_done_of_some_interrupts_between_windows_tells_what_all_of_them_cost() {
    let report = between(6_000, &[1], 1);
    let site = &report.sites[0];
    assert_eq!((site.interrupts, site.timed, site.whole), (6_000, 2_000, 0));
    assert_eq!(site.initiator.least, 6_000.0 * 30_000.0);
    assert!(
        site.initiator.most > site.initiator.least
            && site.initiator.most < 2.0 * site.initiator.least
    );
    // Nothing says what it took from its target, but that it was not more.
    assert_eq!(
        (site.stolen.least, site.stolen.most),
        (0.0, site.initiator.most)
    );
    // 180 ms of 11 s are more than 1 %.
    one(&report.answer, "It is the TLB: server loses");
    // How calls follow each other, and what is touched again, nothing says.
    one(&report.answer, "Try first  cannot be told");
    // A hundredth of that is no matter, and needs no advice.
    let report = between(300, &[1], 1);
    one(
        &report.answer,
        "It is not your TLB: no program loses 1 % of its time",
    );
    assert!(
        !report
            .answer
            .iter()
            .any(|line| line.contains("cannot be told")),
        "{:#?}",
        report.answer
    );
}

/// One flush each 50 ms, of which only the first is recorded where the others are lost.
#[test]
fn the_end_of_a_flush_whose_beginning_was_lost_is_no_wait_for_an_earlier_one() {
    let waited = |lost: bool| {
        let mut all = recorded("the command server", 0, 0, true);
        for flush in 0..2_000_u64 {
            let at = 1_000_000 + flush * 50_000_000;
            if flush % 10 == 0 || !lost {
                if lost {
                    let why = Why::Full;
                    let (time_ns, cpu, count) = (at, 0, 9);
                    all.item(
                        Item::Lost(Lost {
                            why,
                            time_ns,
                            cpu,
                            count,
                        }),
                        &mut (),
                    );
                }
                let queued = sample(at, (7, "server"), "between:csd_queue_cpu", work());
                all.item(Item::Sample(queued), &mut ());
            }
            if flush % 7 == 0 {
                let name = "between:csd_function_exit";
                let done = sample(at + 30_000, (9, "compiler"), name, work());
                all.item(Item::Sample(Sample { cpu: 1, ..done }), &mut ());
            }
        }
        all.item(ran(), &mut ());
        let report = Report::new(all, None);
        let site = &report.sites[0];
        (site.timed, site.initiator.most / site.interrupts as f64)
    };
    let (timed, each) = waited(false);
    assert_eq!((timed, each), (286, 30_000.0 * 1.25));
    // What is not known is not told.
    let (timed, each) = waited(true);
    assert!(
        timed < 30 && each < 40_000.0,
        "{timed} timed, {each} ns each"
    );
}

#[test]
fn an_initiator_waits_for_all_that_one_flush_asks_at_the_same_time() {
    // Of three targets it is the last that says when it was done, in every third flush.
    let report = between(6_000, &[1, 2, 3], 3);
    let site = &report.sites[0];
    assert_eq!(
        (site.interrupts, site.remote, site.timed),
        (18_000, 6_000, 2_000)
    );
    let each = site.initiator.least / site.remote as f64;
    assert!((each - 30_000.0).abs() < 1.0, "{each}");
    // One that asks the same again, or one of a lower number, begins another flush.
    let report = between(6_000, &[1, 1], 1);
    assert_eq!(report.sites[0].remote, 12_000);
}

#[test]
fn of_a_handful_of_interrupts_nobody_may_have_lost_all_its_time() {
    let mut all = recorded("the command server", 2, 0, true);
    for round in 0..10 {
        let at = 1_000_000_000 + round * 200_000;
        all.item(
            Item::Sample(asked_between(at, (7, "server"), "munmap")),
            &mut (),
        );
    }
    all.item(ran(), &mut ());
    let report = Report::new(all, None);
    // Ten that were not timed, at a millisecond each, of 11 s.
    let share = report.programs[0].share.unwrap();
    assert!((0.0009..0.001).contains(&share.most), "{share:?}");
    one(&report.answer, "It is not your TLB");
}

#[test]
fn memory_that_is_kept_may_be_what_others_were_seen_to_protect_between_windows() {
    let of = |call: &str, name: &str| {
        let mut all = recorded_with(None, true, None, Filled::default());
        for round in 0..300 {
            let at = 1_000_000_000 + round * 200_000;
            let queued = asked_between(at, (8, name), call);
            all.item(Item::Sample(queued), &mut ());
        }
        let report = Report::new(all, None);
        let kept = report
            .advice
            .into_iter()
            .find(|advice| advice.kind == "keep");
        kept.map(|advice| (advice.interrupts, advice.left)).unwrap()
    };
    assert_eq!(of("mprotect", "server"), (500, (0, 300)));
    // Another program's memory, or what is given back elsewhere, is not that.
    assert_eq!(of("mprotect", "other"), (200, (0, 0)));
    assert_eq!(of("munmap", "server"), (200, (0, 0)));
}

/// What a barrier costs the program that asks for it, and how many of the kernel's own count are known.
#[test]
fn barriers_are_held_against_the_kernels_count_and_their_callers_time_is_told() {
    let mut all = recorded("the command server", 0, 0, true);
    let count = |when, count| {
        let interrupts = vec![Interrupts {
            name: "CAL".into(),
            counts: vec![count],
            description: "Function call interrupts".into(),
        }];
        Item::Statistics(Statistics {
            when,
            time_ns: 1 + count * 100_000,
            interrupts,
            vmstat: Vec::new(),
            cpu_ns: Vec::new(),
        })
    };
    all.item(count(When::Before, 0), &mut ());
    for call in 0..400 {
        let at = 1_000_000 + call * 100_000;
        let mut add = |later: u64, event: &str, fields| {
            let sample = sample(at + later, (7, "server"), event, fields);
            all.item(Item::Sample(sample), &mut ());
        };
        let mut work = work();
        work[2].1 = Value::Text("ipi_mb".into());
        add(0, "syscalls:sys_enter_membarrier", vec![]);
        add(1_000, "csd:csd_queue_cpu", work.clone());
        add(2_000, "csd:csd_function_entry", work.clone());
        add(3_000, "csd:csd_function_exit", work);
        add(5_000, "syscalls:sys_exit_membarrier", vec![]);
    }
    all.item(count(When::After, 1_000), &mut ());
    let report = Report::new(all, None);
    let row = &report.others[0];
    assert_eq!((row.cause, row.count), ("membarrier", 400));
    assert_eq!(row.caller_ns, Some(400.0 * 5_000.0));
    assert_eq!(report.function_calls, Some(1_000));
    let line = one(&report.answer, "Not TLB");
    assert!(line.ends_with("callers 2.0 ms"), "{line}");
    one(&report.answer, "0 % of all function calls (CAL 1 000)");
    assert!(
        report
            .notes
            .iter()
            .any(|note| note.contains("the function is known of 40 %")),
        "{:#?}",
        report.notes
    );
}
