//! Tests replays of invented calls.

use super::*;
use quell_conformance::parse_policy;

/// Creates a recording: one CPU pages out or discards 16 pages again and again, and computes in between. Another CPU
/// runs the same process.
fn recording(call: &str, compute_ns: u64, price: Option<Price>) -> Recording {
    let calls = |rounds: u64, bytes: u64| {
        let text = format!(
            r#"
name = "recorded"
title = "pages out"
mechanism = "S0"
cpus = 2
[memory]
touched = "{bytes} + 1M"
[figure]
says = "ns per call"
value = "nanoseconds / done"
[operation]
is = "call"
[[threads]]
when = "cpu == 0"
program = [
    {{ map = "a", bytes = {bytes} }},
    {{ begin = true }},
    {{ without = 1 }},
    {{ repeat = {rounds}, do = [
        {{ compute = "{compute_ns} * 64 / {rounds}" }},
        {{ write = "a", bytes = {bytes} }},
        {{ {call} = "a", bytes = {bytes} }},
        {{ done = 1 }},
    ] }},
    {{ end = true }},
]
[[threads]]
program = [ {{ begin = true }}, {{ bystand = "20us" }} ]
"#
        );
        Workload::parse("recorded.toml", &text).unwrap()
    };
    Recording {
        calls: calls(64, 16 << 12),
        merged: vec![(4, calls(16, 64 << 12))],
        sent: RecordedCount::Interrupts(64),
        price,
        fault_ns: None,
    }
}

const PRICE: Price = Price { waited_ns: (10e3, 12e3), taken_ns: (4e3, 6e3), targets: 1.0 };

fn replayed(policy: &str, recording: &Recording) -> Replay {
    let machine = quell_clock::built_in("haswell-server").unwrap();
    let kernel = Kernel::of_policy(parse_policy(policy).unwrap());
    replay(&machine, &kernel, recording).unwrap()
}

fn of(replay: &Replay, wanted: &str) -> Change {
    let is = |change: &&Change| match change.what {
        ChangeKind::Mechanism { name, .. } => name == wanted,
        ChangeKind::Merged { .. } => wanted == "merged",
    };
    *replay.changes.iter().find(is).unwrap()
}

#[test]
fn a_mechanism_shows_where_the_kernel_has_it_and_where_it_has_not() {
    let recording = recording("page_out", 1000, Some(PRICE));
    for (policy, in_kernel) in [("S0", true), ("baseline", false)] {
        let found = replayed(policy, &recording);
        let batch = of(&found, "S0");
        let name = "S0";
        assert_eq!(batch.what, ChangeKind::Mechanism { name, in_kernel });
        // A batch of pages shares one flush.
        assert!(batch.interrupts.0 > 0.9, "{batch:?}");
        assert!(batch.matters && batch.time.0 > 0.1, "{batch:?}");
        assert_eq!(found.reproduces(), in_kernel, "{found:?}");
        // These calls switch no processes and zero no large extents.
        assert!(!of(&found, "S1").matters && !of(&found, "S2").matters, "{found:?}");
        assert_eq!(found.violations, 0);
    }
}

#[test]
fn larger_calls_are_worth_what_an_interrupt_costs() {
    let dear = replayed("S0", &recording("discard", 1000, Some(PRICE)));
    let cheap = Price { waited_ns: (1e3, 2e3), ..PRICE };
    let cheap = replayed("S0", &recording("discard", 1000, Some(cheap)));
    let (dear, cheap) = (of(&dear, "merged"), of(&cheap, "merged"));
    assert!(dear.time.0 <= dear.time.1 && dear.matters, "{dear:?}");
    assert!(dear.time.0 > cheap.time.1, "{dear:?} {cheap:?}");
    // Four calls become one, with one flush.
    assert!(dear.interrupts.0 > 0.6 && dear.interrupts.1 < 0.9, "{dear:?}");
}

#[test]
fn dear_page_faults_are_what_limits() {
    let dear = Recording { fault_ns: Some((5e3, 6e3)), ..recording("discard", 1000, Some(PRICE)) };
    let cheap = recording("discard", 1000, Some(PRICE));
    let (dear, cheap) = (replayed("S0", &dear), replayed("S0", &cheap));
    let (dear, cheap) = (of(&dear, "merged"), of(&cheap, "merged"));
    assert_eq!(dear.next, Some("page faults"), "{dear:?}");
    // The same interrupts are a smaller part of the time.
    assert!(dear.time.1 < cheap.time.0, "{dear:?} {cheap:?}");
}

#[test]
fn what_is_below_the_noise_is_not_advised() {
    let found = replayed("S0", &recording("discard", 100_000_000, Some(PRICE)));
    assert!(of(&found, "merged").interrupts.0 > 0.6, "{found:?}");
    assert!(found.changes.iter().all(|change| !change.matters), "{found:?}");
}

#[test]
fn where_the_recording_does_not_tell_the_price_the_range_is_wider() {
    let width = |change: Change| change.time.1 - change.time.0;
    let told = of(&replayed("baseline", &recording("page_out", 1000, Some(PRICE))), "S0");
    let untold = of(&replayed("baseline", &recording("page_out", 1000, None)), "S0");
    assert!(width(untold) > width(told), "{untold:?} {told:?}");
}

#[test]
fn a_recording_that_interrupted_no_cpu_is_refused() {
    let machine = quell_clock::built_in("haswell-server").unwrap();
    let kernel = Kernel::of_policy(parse_policy("S0").unwrap());
    let none_sent =
        Recording { sent: RecordedCount::Interrupts(0), ..recording("discard", 1000, None) };
    assert_eq!(replay(&machine, &kernel, &none_sent).unwrap_err(), ReplayError::Nothing);
}
