//! Checks that every answer fits on a terminal and has complete sentences.

use crate::attribute::site::Site;
use crate::perf::{Change, CpuTime, Flushes, Host, Item};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use unicode_width::UnicodeWidthStr;

use super::*;
use crate::line::{COLUMNS, parted};
use crate::report::OtherRow;

const NAMES: [&str; 6] = [
    "ag",
    "allocator",
    "a_long_name_by_",
    "kworker/u16:3+e",
    "<wasmtime::runtime::vm::instance::allocator::pooling::decommit_queue::DecommitQueue>::flush",
    "runtime.(*pageAlloc).scavenge.func1.of.a.package.that.has.no.other.functions.at.all",
];

const CAUSES: [&str; 3] = ["membarrier", "other parts of the kernel", "unknown causes"];

const KINDS: [&str; 4] = ["keep", "fork", "merge", "reclaim"];

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(&NAMES[..]).prop_map(str::to_owned),
        1 => ".{0,90}",
    ]
}

/// Generates a count: none, a few, or many.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..60u64, 60..100_000_000u64]
}

fn range(most: f64) -> impl Strategy<Value = Range> {
    let edge = (0.0..1.0f64, 0..12).prop_map(move |(part, by)| most * part * 0.1f64.powi(by));
    (edge.clone(), edge)
        .prop_map(|(one, other)| Range { least: one.min(other), most: one.max(other) })
}

prop_compose! {
    fn site()(
        program in name(), call in name(), place in name(),
        (interrupts, timed, whole) in (number(), number(), number()),
        (requests, pages, full, refaults) in (number(), number(), number(), number()),
        (initiator, stolen) in (range(1e12), range(1e12)),
        locked_ns in prop_oneof![Just(0.0), 0.0..1e12],
    ) -> SiteRow {
        SiteRow {
            program, call, frames: vec![place], requests, remote: requests, interrupts, timed: timed.min(interrupts),
            whole: whole.min(timed).min(interrupts), pages, full, initiator, stolen, locked_ns, refaults,
            ..SiteRow::default()
        }
    }
}

prop_compose! {
    fn program()(
        name in name(), cpu_ns in prop::option::of(0.0..1e12), (sent, timed) in (number(), number()),
        waited in range(1e12), stolen in range(1e12), share in prop::option::of(range(1.0)),
    ) -> ProgramRow {
        ProgramRow {
            name, cpu_ns, sent, timed: timed.min(sent), waited, stolen, share, ..ProgramRow::default()
        }
    }
}

prop_compose! {
    fn other()(
        cause in prop::sample::select(&CAUSES[..]), functions in prop::collection::vec((name(), number()), 1..5),
        count in number(), ns in prop::option::of(0.0..1e12), caller_ns in prop::option::of(0.0..1e12),
    ) -> OtherRow {
        OtherRow { cause, functions, count, ns, caller_ns }
    }
}

prop_compose! {
    fn advice()(
        program in name(), place in name(), kind in prop::sample::select(&KINDS[..]), interrupts in number(),
        left in (number(), number()), share in prop::option::of(range(1.0)), recorded in prop::option::of(0..50u64),
        means in prop::sample::select(&[Means::Setting, Means::Code, Means::Kernel][..]),
    ) -> Advice {
        let brief = match kind {
            "keep" => Line::new("").text("keep memory for 100 ms before giving it back").remark(" (decay)"),
            "fork" => Line::new("").text("fork less often, or write less between fork and the child's exit"),
            "merge" => Line::new("").text("merge ").name(&program).text(" calls into one over the whole span"),
            _ => Line::new("").text("raise the memory limit, or read files (pread) instead of mapping"),
        };
        let brief = match kind {
            "keep" | "merge" => brief.text(", at ").name(&place),
            _ => brief,
        };
        let left = (left.0.min(interrupts), left.1.min(interrupts));
        Advice {
            program, place, kind, interrupts, left: (left.0.min(left.1), left.0.max(left.1)), share, means, brief,
            recorded, ..Advice::default()
        }
    }
}

prop_compose! {
    fn report()(
        sites in prop::collection::vec(site(), 0..3), programs in prop::collection::vec(program(), 0..4),
        others in prop::collection::vec(other(), 0..3), advice in prop::collection::vec(advice(), 0..2),
        (attributed, ns) in (number(), number()), function_calls in prop::option::of(number()), cpus in 1..512usize,
    ) -> Report {
        Report {
            sites, programs, others, advice, attributed, cpus, ns: ns * 1000, function_calls, ..Report::default()
        }
    }
}

/// Creates a recording with this scope, which is about this program.
fn of(scope: &str, own: &str) -> Attribution {
    let mut from = Attribution::new();
    let scope = scope.into();
    let started = Change::named(0, 7, own, true);
    from.item(Item::Host(Host { scope, ..Host::default() }), &mut ());
    from.item(Item::Change(started), &mut ());
    from
}

#[test]
fn all_that_there_may_be_to_say_is_ten_lines_and_what_tables_say_too_is_left_to_them() {
    let mut runner = TestRunner::deterministic();
    let mut any = |name: &str| {
        let mut program = program().new_tree(&mut runner).unwrap().current();
        let range = Range { least: 0.2, most: 0.3 };
        (program.name, program.share) = (name.into(), Some(range));
        (program.sent, program.timed) = (900, 900);
        program
    };
    let programs = vec![any("server"), any("compiler")];
    let mut report = report().new_tree(&mut runner).unwrap().current();
    let mut site = site().new_tree(&mut runner).unwrap().current();
    (site.program, site.interrupts, site.refaults) = ("server".into(), 900, 5);
    let mut advice = advice().new_tree(&mut runner).unwrap().current();
    (advice.program, advice.means) = ("server".into(), Means::Setting);
    let mut other = other().new_tree(&mut runner).unwrap().current();
    (other.cause, other.count) = ("membarrier", 5_000);
    (report.programs, report.sites) = (programs, vec![site]);
    (report.advice, report.others) = (vec![advice], vec![other]);
    let labels = |report: &Report, windows: Option<u64>| {
        let mut from = of("the command server", "server");
        from.windows_ns = windows;
        from.seen.queued = true;
        let lines = answer(&from, report, 1800.0, 0.0, Some(1800), None);
        let labels: Vec<String> = lines.iter().map(|line| parted(line).0.into()).collect();
        labels
    };
    report.attributed = 1800;
    assert_eq!(
        labels(&report, None),
        [
            "Verdict",
            "Try first",
            "",
            "Interrupts",
            "Attributed",
            "Recorded",
            "Each flush",
            "Besides",
            "Not TLB",
            "Others"
        ]
    );
    // Interrupts of unknown causes may be shootdowns.
    report.others[0].cause = UNKNOWN;
    assert!(!labels(&report, None).contains(&"Not TLB".to_owned()));
    // The recorder itself patches the kernel's code at the ends of windows.
    report.others[0].cause = "code patching";
    assert_eq!(labels(&report, None)[8], "Not TLB");
    assert!(!labels(&report, Some(5)).contains(&"Not TLB".to_owned()));
    // With room for one more line, we add the program that pays most. With room for two, also the flushes.
    report.others.clear();
    assert_eq!(
        labels(&report, None)[5..],
        ["Recorded", "Each flush", "Recorded", "Besides", "Others"]
    );
    report.programs.truncate(1);
    assert_eq!(labels(&report, None)[5..], ["Most from", "", "Each flush", "Pays most", "Besides"]);
}

#[test]
fn a_command_refilled_at_least_what_it_never_held() {
    let besides = |windows_ns| {
        let mut from = of("the command server", "server");
        (from.begins_known, from.windows_ns, from.times) = (true, windows_ns, Some((0, 1_000)));
        from.programs.iter_mut().for_each(|program| program.faults = 100);
        from.ran.push(CpuTime {
            comm: "server".into(),
            user_ns: 1_000_000_000,
            faults: 10_000,
            processes: 1,
            peak_pages: 1_000,
            ..CpuTime::default()
        });
        from.sites.push(Site { summed: Some(Flushes::default()), ..Site::default() });
        let report = Report { ns: 1_000, ..Report::default() };
        let lines = answer(&from, &report, 0.0, 0.0, None, None);
        let line = lines.into_iter().find(|line| line.starts_with("Besides"));
        line.unwrap_or_default()
    };
    for (windows_ns, expected) in
        [(None, ", 9 000 refilled"), (Some(500), ", 9 000 or more refilled")]
    {
        let line = besides(windows_ns);
        assert!(line.contains(expected), "{line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Checks the shape of answers, for reports like those of recordings up to some hours.
    ///
    /// An answer has at most ten lines. No line is wider than a terminal, and none is cut. The verdict comes first.
    #[test]
    fn the_answer_is_ten_lines_of_a_terminal(
        mut report in report(),
        all in prop_oneof![Just(0.0), 1.0..100_000_000.0f64],
        row in prop::option::of(number()),
        (about, at_home) in (any::<bool>(), any::<bool>()), everything in any::<bool>(), queued in any::<bool>(), locks in any::<bool>(),
    ) {
        let scope = if everything { "everything" } else { "the command server" };
        let own = report.programs.first().map_or("", |program| &program.name).to_owned();
        let mut from = of(scope, &own);
        (from.seen.queued, from.seen.locks) = (queued, locks);
        if let (Some(site), true) = (report.sites.first_mut(), at_home) {
            site.program.clone_from(&own);
        }
        if let (Some(advice), true) = (report.advice.first_mut(), at_home) {
            advice.program.clone_from(&own);
        }
        let only = about.then_some("server");
        let lines = answer(&from, &report, all, 0.0, row, only);
        prop_assert!(lines.len() <= LINES, "{lines:#?}");
        let begins = |words: &str| lines[0].starts_with(&format!("Verdict    {words}"));
        prop_assert!(begins("It ") || begins("Unknown: "), "{lines:#?}");
        for line in &lines {
            prop_assert!(line.width() <= COLUMNS, "{}: {lines:#?}", line.width());
            prop_assert!(!line.ends_with('…'), "{lines:#?}");
            prop_assert!(!line.chars().any(char::is_control), "{lines:#?}");
        }
    }
}
