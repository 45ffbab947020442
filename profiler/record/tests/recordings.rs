//! Checks recordings of a real program with two threads on two CPUs.
//!
//! One thread runs a loop. The other makes 32 `madvise`, one `munmap` and two `mprotect` calls in each of a few rounds.

use std::io::Cursor;

use proptest::prelude::*;
use quell_record::attribute::{Attribution, Evidence};
use quell_record::import::Import;
use quell_record::perf::{Item, ReadTime, Source, Window};
use quell_record::report::{Report, SiteRow};
use quell_record::workload::Calls;
use unicode_width::UnicodeWidthStr;

use crate::written::{count, number, read, sample, summed, work};

const PERF: &str = include_str!("recordings/perf.txt");
const TRACE_CMD: &str = include_str!("recordings/trace-cmd.txt");
const TRACE: &str = include_str!("recordings/trace.txt");

fn open(text: &[u8]) -> Import {
    Import::read(Cursor::new(text.to_vec()), "recording", Some(text.len() as u64)).unwrap()
}

fn analysed(text: &str) -> Attribution {
    quell_record::analyse(&mut open(text.as_bytes()), &mut (), &mut |_, _| true).unwrap()
}

/// Returns the recording without the events whose lines contain one of these words.
fn without(words: &[&str]) -> String {
    let mut kept = String::new();
    let mut keeps = true;
    for line in PERF.lines() {
        if !line.starts_with('\t') && !line.is_empty() {
            keeps = !words.iter().any(|word| line.contains(word));
        }
        if keeps {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn every_interrupt_that_the_kernel_counted_is_laid_at_a_call() {
    let report = Report::new(analysed(PERF), None);
    assert_eq!((report.interrupts, report.attributed, report.lost), (97, 97, 0));
    let of = |call: &str| report.sites.iter().find(|site| site.call == call).unwrap();
    let discards = of("madvise");
    assert_eq!((discards.program.as_str(), discards.requests, discards.pages), ("churn", 96, 96));
    assert_eq!(discards.frames, ["__madvise", "main"]);
    assert_eq!((of("munmap").requests, of("mprotect").requests), (3, 6));
    assert_eq!(of("exit").frames, ["exit_mmap"]);
    for site in &report.sites[..3] {
        assert!(
            0.0 < site.initiator.least && site.initiator.least <= site.initiator.most,
            "{site:?}"
        );
        assert!(0.0 < site.stolen.least && site.stolen.least <= site.stolen.most, "{site:?}");
    }
    assert!(report.answer.len() <= 10);
    assert!(
        report.answer.iter().any(|line| line.starts_with("Verdict    It is the TLB")),
        "{:#?}",
        report.answer
    );
}

#[test]
fn the_json_has_the_keys_that_were_promised() {
    let json = Report::new(analysed(PERF), None).json();
    let keys =
        |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        keys(&json),
        ["advice", "attributed", "function_calls", "interrupts", "lost", "others", "sites"]
    );
    assert_eq!(
        keys(&json["sites"][0]),
        [
            "call",
            "full",
            "initiator_ns",
            "interrupts",
            "pages",
            "requests",
            "stack",
            "stolen_ns",
            "thread"
        ]
    );
    assert_eq!(json["sites"][0]["call"], "madvise");
    assert_eq!(json["sites"][0]["stack"], serde_json::json!(["__madvise", "main", "[churn]"]));
}

/// Checks that two initiators share the time around their flushes in one interrupt.
#[test]
fn an_interrupt_that_does_two_works_is_charged_once() {
    let mut all = Attribution::new();
    let mut add = |time_ns, process, cpu, event: &str, fields| {
        let mut event = sample(time_ns, process, event, fields);
        event.cpu = cpu;
        all.item(Item::Sample(event), &mut ());
    };
    let work = |csd| [vec![number("csd", csd)], work()].concat();
    let (one, two, target) = ((10, "a"), (20, "b"), (30, "c"));
    for (process, cpu, at, call, csd) in [(one, 0, 1000, "madvise", 1), (two, 2, 2200, "munmap", 2)]
    {
        add(at, process, cpu, &format!("syscalls:sys_enter_{call}"), vec![number("len", 4096)]);
        let flush = vec![number("pages", 1), number("reason", 4)];
        add(at + 100, process, cpu, "tlb:tlb_flush", flush);
        add(at + 200, process, cpu, "csd:csd_queue_cpu", work(csd));
    }
    add(3000, target, 1, "irq_vectors:call_function_entry", vec![]);
    for (csd, at) in [(1, 4000), (2, 4200)] {
        add(at, target, 1, "csd:csd_function_entry", work(csd));
        add(at + 100, target, 1, "csd:csd_function_exit", work(csd));
    }
    add(9000, target, 1, "irq_vectors:call_function_exit", vec![]);
    add(9500, one, 0, "syscalls:sys_exit_madvise", vec![]);
    add(9600, two, 2, "syscalls:sys_exit_munmap", vec![]);
    let report = Report::new(all, None);
    let stolen: Vec<f64> = report.sites.iter().map(|site| site.stolen.most).collect();
    // The interrupt took 6 us.
    assert_eq!(stolen, [3000.0, 3000.0], "{:?}", report.sites);
}

#[test]
fn calls_that_could_be_one_are_advised_to_be_one() {
    let report = Report::new(analysed(PERF), None);
    let merge = report.advice.iter().find(|advice| advice.kind == "merge").unwrap();
    // 32 calls in a row can become one, so three rounds leave at least three.
    assert!(merge.left.0 >= 3 && merge.left.1 <= 10, "{merge:?}");
    assert_eq!((merge.call.as_str(), merge.interrupts), ("madvise", 90));
}

#[test]
fn calls_that_are_far_apart_are_not() {
    // This is the same recording, a thousand times slower.
    let mut slow = String::new();
    for line in PERF.lines() {
        let time = line
            .split(' ')
            .find(|word| word.ends_with(':') && word.contains('.') && !line.starts_with('\t'));
        match time.and_then(|word| Some((word, word.trim_end_matches(':').parse::<f64>().ok()?))) {
            Some((word, seconds)) => slow.push_str(&line.replacen(
                word,
                &format!("{:.6}:", (seconds - 40_000.0) * 1000.0),
                1,
            )),
            None => slow.push_str(line),
        }
        slow.push('\n');
    }
    let report = Report::new(analysed(&slow), None);
    assert_eq!(report.attributed, 97);
    assert!(report.advice.iter().all(|advice| advice.kind != "merge"), "{:?}", report.advice);
}

#[test]
fn older_kernels_tell_less_and_that_is_said() {
    let all = analysed(&without(&["csd:"]));
    assert_eq!(all.evidence(), Evidence::Received);
    let report = Report::new(all, None);
    // A target that has nothing left to flush has no event.
    assert!((90..=97).contains(&report.attributed), "{}", report.attributed);
    assert!(report.sites[0].stolen.most > 0.0);
    assert!(report.notes.iter().any(|note| note.contains("No csd:* events")), "{:?}", report.notes);

    let report = Report::new(analysed(&without(&["csd:", "tlb:"])), None);
    assert_eq!(report.attributed, 0);
    assert!(
        report.notes.iter().any(|note| note.contains("Shootdowns need one of them")),
        "{:?}",
        report.notes
    );
}

#[test]
fn what_is_no_shootdown_is_told_apart() {
    let other = PERF
        .replace("flush_tlb_func", "ipi_mb")
        .replace("flush_tlb", "membarrier")
        .replace("tlb:tlb_flush", "tlb:other");
    let report = Report::new(analysed(&other), None);
    assert_eq!(report.attributed, 0);
    // One of the 97 interrupts was taken by a program that isn't in the recording.
    assert_eq!((report.others[0].cause, report.others[0].count), ("membarrier", 96));
    assert!(report.answer.iter().any(|line| line.contains("membarrier")), "{:#?}", report.answer);
    assert!(
        !report.answer.iter().any(|line| line.contains("It is the TLB")),
        "{:#?}",
        report.answer
    );
}

#[test]
fn there_is_no_verdict_on_what_was_not_recorded() {
    let part = PERF.replace("5961246   TLB", "5971246   TLB");
    assert_ne!(part, PERF);
    let report = Report::new(analysed(&part), None);
    assert_eq!((report.interrupts, report.attributed), (10_097, 97));
    let verdict = |begin: &str| report.answer.iter().any(|line| line.contains(begin));
    assert!(!verdict("It is"), "{:#?}", report.answer);
    assert!(
        verdict("Verdict    Unknown: most interrupts in /proc/interrupts were not recorded"),
        "{:#?}",
        report.answer
    );
}

#[test]
fn trace_cmd_and_the_kernels_own_file_say_the_same() {
    for (name, text) in [("trace-cmd", TRACE_CMD), ("trace", TRACE)] {
        let sent =
            text.matches("csd_queue_cpu").count() - text.matches("event_csd_queue_cpu").count();
        assert!(sent > 5, "{name}: {sent}");
        let report = Report::new(analysed(text), None);
        assert_eq!(report.attributed, sent as u64, "{name}");
        let site = &report.sites[0];
        assert_eq!((site.call.as_str(), site.program.as_str()), ("madvise", "churn"), "{name}");
        assert!(site.initiator.least > 0.0 && site.stolen.most > 0.0, "{name}: {site:?}");
    }
}

#[test]
fn what_is_no_recording_is_refused_with_the_way_out() {
    let refused = |text: &[u8]| {
        let source = Import::read(Cursor::new(text.to_vec()), "x.data", None);
        match source {
            Err(error) => error.to_string(),
            Ok(mut source) => loop {
                match source.next() {
                    Err(error) => break error.to_string(),
                    Ok(None) => panic!("{text:?} is read"),
                    Ok(Some(_)) => {}
                }
            },
        }
    };
    assert!(refused(b"quell recording 4\n\0\x01").contains("give the name of its file"));
    assert!(refused(b"PERFILE2\0\0\0").contains("perf script"));
    assert!(refused(b"\x17\x08\x44tracing6").contains("trace-cmd report"));
    let empty = refused(b"");
    assert!(
        empty.starts_with("x.data: this file is empty") && empty.contains("record again"),
        "{empty}"
    );
    assert!(refused(b"# captured on: x\n").contains("no event"));
    assert!(refused(b"hello\nworld\n").contains("x.data, line 1: "));
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_the_rest_is_read() {
    let broken = PERF.replacen("\n\n", "\n\nthis is no event\n\n", 1);
    let report = Report::new(analysed(&broken), None);
    assert_eq!(report.attributed, 97);
    let said = report.notes.iter().find(|note| note.contains("were not understood"));
    assert!(said.is_some_and(|said| said.contains("`this is no event`")), "{:?}", report.notes);
}

/// Generates real text with parts removed, doubled, overwritten or moved.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let text = prop_oneof![Just(PERF), Just(TRACE_CMD), Just(TRACE)];
    let change = (0.0..1.0f64, 0usize..400, 0..4u8, any::<u8>(), 0.0..1.0f64);
    // A whole recording would take too long, so we use parts of it.
    let part = (text, 0.0..1.0f64, proptest::collection::vec(change, 1..12));
    part.prop_map(|(text, from, changes)| {
        let from = (from * (text.len() - 20_000) as f64) as usize;
        let mut bytes = text.as_bytes()[from..from + 20_000].to_vec();
        for (at, length, how, byte, to) in changes {
            let at = (at * bytes.len() as f64) as usize;
            let end = (at + length).min(bytes.len());
            let to = (to * at as f64) as usize;
            match how {
                0 => drop(bytes.drain(at..end)),
                1 => {
                    let part = bytes[at..end].to_vec();
                    bytes.splice(to..to, part);
                }
                2 => bytes[at..end].fill(byte),
                _ => {
                    let part: Vec<u8> = bytes.drain(at..end).collect();
                    bytes.splice(to..to, part);
                }
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Checks that damaged text yields every readable event and finite figures, and that reading ends.
    #[test]
    fn damaged_text_is_read_as_far_as_it_can_be(bytes in mutated()) {
        let mut source = open(&bytes);
        let mut all = Attribution::new();
        let mut samples = 0;
        let ended = loop {
            match source.next() {
                Ok(Some(item)) => {
                    samples += u64::from(matches!(item, Item::Sample(_)));
                    all.item(item, &mut ());
                }
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        prop_assert_eq!(ended, samples > 0);
        prop_assert_eq!(all.samples, samples);
        let report = Report::new(all, None);
        prop_assert!(report.answer.len() <= 10);
        let longest = report.answer.iter().map(|line| line.width()).max();
        prop_assert!(longest <= Some(80), "{:#?}", report.answer);
        let shares = report.sites.iter().filter_map(|site| site.share);
        for share in shares {
            prop_assert!(share.least.is_finite() && share.most <= 1.0);
        }
        report.json();
    }
}

/// Returns the recording as one window in a recording that lasted ten times as long.
fn ten_times_as_long() -> Attribution {
    let mut all = analysed(PERF);
    let end_ns = all.elapsed_ns();
    let (start_ns, whole) = (0, 10 * end_ns);
    let readings = [read(ReadTime::Before, 1), read(ReadTime::After, 1 + whole)];
    let [before, after] = readings.map(Item::Statistics);
    for item in [before, Item::Window(Window { start_ns, end_ns }), after] {
        all.item(item, &mut ());
    }
    all
}

#[test]
fn a_recording_lasts_as_long_as_it_ran_not_as_its_one_stretch() {
    let cpu = |report: &Report| report.programs[0].cpu_ns;
    let once = Report::new(analysed(PERF), None);
    let report = Report::new(ten_times_as_long(), None);
    assert_eq!((once.ns, report.ns), (analysed(PERF).elapsed_ns(), 10 * once.ns));
    // A window of a tenth of the time doesn't tell how long a program ran: threads that ran on show no event in it.
    assert!(cpu(&once).is_some_and(|ns| ns > 0.0), "{once:?}");
    assert_eq!(cpu(&report), None);
}

#[test]
fn a_handful_of_interrupts_says_nothing_of_calls_that_nothing_counts() {
    let calls = |seen: u64| {
        let mut all = ten_times_as_long();
        // There were a hundred interrupts for each recorded one, in ten times the time.
        let events = ["csd:csd_queue_cpu", "tlb:tlb_flush"];
        for event in events {
            all.item(count(event, 100 * seen, seen), &mut ());
        }
        let report = Report::new(all, None);
        report.sites.iter().map(|site| site.calls).sum::<u64>()
    };
    let recorded = {
        let report = Report::new(analysed(PERF), None);
        report.sites.iter().map(|site| site.calls).sum::<u64>()
    };
    assert!(recorded > 0);
    assert_eq!((calls(7), calls(5000)), (10 * recorded, 100 * recorded));
}

#[test]
fn what_one_change_removes_everywhere_in_a_program_is_advised_once() {
    // These are the same flushes, as if each copied a page after a fork, in two functions of the program in turn.
    let mut copies = String::new();
    for (at, line) in PERF.lines().enumerate() {
        if line.contains(" __madvise (") || line.contains("syscalls:sys_") {
            continue;
        }
        let function = if at % 2 == 0 { " main (" } else { " other (" };
        let line = line.replace("do_madvise", "do_wp_page");
        let line = line.replace("__x64_sys_madvise", "exc_page_fault");
        copies.push_str(&line.replace(" main (", function));
        copies.push('\n');
    }
    let forked = |forked| {
        let mut all = analysed(&copies);
        all.begins_known = true;
        for program in &mut all.programs {
            program.forked = forked;
        }
        Report::new(all, None)
    };
    let report = forked(true);
    let copying = |site: &&SiteRow| site.call == "copy-on-write" && site.interrupts > 0;
    let sites: Vec<u64> = report.sites.iter().filter(copying).map(|site| site.interrupts).collect();
    assert!(sites.len() > 1, "{:#?}", report.sites);
    let forks: Vec<_> = report.advice.iter().filter(|advice| advice.kind == "fork").collect();
    assert_eq!(forks.len(), 1, "{:#?}", report.advice);
    assert_eq!(forks[0].interrupts, sites.iter().sum::<u64>());
    // Without a fork, the copies are of a privately mapped file or of a page of zeros.
    let without = forked(false);
    assert!(without.advice.iter().all(|advice| advice.kind != "fork"));
}

#[test]
fn events_that_were_lost_are_said_and_no_flush_interrupts_a_cpu_twice() {
    let whole = Report::new(analysed(PERF), None);
    let mut all = analysed(PERF);
    all.lost = 100;
    // The windows have fewer flushes for each interrupt than are needed to send it.
    let cpus = u64::from(all.host.as_ref().unwrap().cpus);
    for site in &mut all.sites {
        (site.requests, site.remote) = (site.requests / 100, site.remote / 100);
    }
    let report = Report::new(all, None);
    let lost =
        |report: &Report| report.notes.iter().any(|note| note.starts_with("100 events were lost"));
    assert!(lost(&report) && !lost(&whole), "{:#?}", report.notes);
    assert_eq!(report.interrupts, whole.interrupts);
    let first = &report.sites[0];
    assert!(first.interrupts > 0 && first.requests < whole.sites[0].requests);
    for site in whole.sites.iter().chain(&report.sites) {
        assert!(site.requests * (cpus - 1) >= site.interrupts, "{site:#?}");
    }
}

/// Checks that a shell isn't the busiest process just because the first window records everything.
#[test]
fn the_busiest_process_is_the_one_that_interrupts_most_whenever_it_was_recorded() {
    let mut calls = Calls::default();
    let mut add = |time_ns, process, event: &str, fields| {
        calls.item(&Item::Sample(sample(time_ns, process, event, fields)));
    };
    let (shell, program) = ((7, "bash"), (8, "python3"));
    let range = || vec![number("addr", 0x1000), number("len", 4096)];
    for (process, times, begin) in [(shell, 50, 0), (program, 5, 1_000_000)] {
        for time in (begin..).step_by(1000).take(times) {
            add(time, process, "syscalls:sys_enter_munmap", range());
            add(time + 300, process, "csd:csd_queue_cpu", work());
            add(time + 600, process, "syscalls:sys_exit_munmap", vec![]);
        }
    }
    let fields = summed(2_000_000, program, "munmap", 100, 1_000).fields;
    add(2_000_000, program, "sums:flushes", fields);
    let written = calls.busiest(None).unwrap().workload();
    assert!(written.text.contains("python3"), "{}", written.text);
}

#[test]
fn row_cal_counts_shootdowns_too() {
    let all = Report::new(analysed(PERF), None);
    assert_eq!((all.interrupts, all.function_calls), (97, Some(97)));
    crate::answer::one(&all.answer, ", 100 % of all function calls (CAL 97)");
    assert!(!all.notes.iter().any(|note| note.contains("CAL")));
    let more = PERF.replacen("CAL:    2868001 ", "CAL:    2867901 ", 1);
    let more = Report::new(analysed(&more), None);
    let others = "Row CAL of /proc/interrupts counts 100 interrupts that are no shootdowns.";
    crate::answer::one(&more.notes, others);
}
