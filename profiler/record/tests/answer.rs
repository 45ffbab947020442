//! Checks the lines of the answer on artificial recordings. They're of a server, beside which another program flushes
//! more.

use crate::written::{add, count, frame, interrupt, number, ran, read, sample, summed, work};
use quell_record::attribute::Attribution;
use quell_record::perf::{
    Change, Frame, Host, Interrupts, Item, LossReason, LostEvents, ReadTime, Statistics, Value,
    Window,
};
use quell_record::report::Report;

/// Adds all events of a flush that interrupts another CPU.
fn flush(all: &mut Attribution, at: u64, pid: u32, comm: &str) {
    let mut add = |event: &str, time_ns, fields| add(all, time_ns, (pid, comm), event, fields);
    let enter = "syscalls:sys_enter_madvise";
    add(enter, at, vec![number("behavior", 4)]);
    interrupt(&mut add, at + 1_000);
    add("syscalls:sys_exit_madvise", at + 10_000, vec![]);
    add("sched:sched_switch", at + 90_000, vec![number("next_pid", 0)]);
}

fn window(all: &mut Attribution, start_ns: u64, end_ns: u64) {
    all.item(Item::Window(Window { start_ns, end_ns }), &mut ());
}

/// Adds a function that another CPU queued for this one, and the time that it took.
fn ran_function(all: &mut Attribution, at: u64, function: &str) {
    let function = ("func".into(), Value::Text(function.into()));
    for (event, at) in [("csd:csd_function_entry", at), ("csd:csd_function_exit", at + 2_000)] {
        add(all, at, (7, "server"), event, vec![number("csd", 9), function.clone()]);
    }
}

/// Returns the answer for a recording with this scope. The server and the other program flush this often.
fn said(scope: &str, server: u64, other: u64) -> Vec<String> {
    report(scope, server, other).answer
}

/// Returns the whole report on such a recording.
fn report(scope: &str, server: u64, other: u64) -> Report {
    Report::new(recorded(scope, server, other), None)
}

/// Returns the recording itself.
pub(crate) fn recorded(scope: &str, server: u64, other: u64) -> Attribution {
    let mut all = Attribution::new();
    all.item(Item::Host(Host { cpus: 2, scope: scope.into(), ..Host::default() }), &mut ());
    let started = Change::named(0, 7, "server", true);
    all.item(Item::Change(started), &mut ());
    for round in 0..server.max(other) {
        let at = round * 200_000;
        if round < server {
            flush(&mut all, at, 7, "server");
        }
        if round < other {
            flush(&mut all, at + 100_000, 9, "compiler");
        }
    }
    all
}

pub(crate) fn one<'a>(lines: &'a [String], word: &str) -> &'a str {
    let found = lines.iter().find(|line| line.contains(word));
    found.unwrap_or_else(|| panic!("no line says {word}: {lines:#?}"))
}

#[test]
fn the_answer_is_about_what_was_recorded_and_others_are_told_of_apart() {
    let lines = said("the command server", 100, 900);
    assert!(one(&lines, "most from").starts_with("Recorded   most from server"), "{lines:#?}");
    assert!(one(&lines, "pays most").starts_with("Recorded   server pays most"), "{lines:#?}");
    assert!(one(&lines, "It is the TLB: ").contains("TLB: server loses"), "{lines:#?}");
    let others = one(&lines, "Others");
    assert!(others.contains("sent 900") && others.contains("most by compiler: 900"), "{others}");
    // A recording of everything is about the compiler, too.
    let lines = said("everything", 100, 900);
    assert!(one(&lines, "ost from").starts_with("Most from  compiler"), "{lines:#?}");
    assert!(one(&lines, "ays most").starts_with("Pays most  compiler"), "{lines:#?}");
    assert!(lines.iter().all(|line| !line.contains("Others")), "{lines:#?}");
}

#[test]
fn advice_is_on_what_was_recorded() {
    let advised = |scope| {
        let advice = report(scope, 100, 900).advice.into_iter();
        let mut programs: Vec<String> = advice.map(|advice| advice.program).collect();
        programs.sort();
        programs.dedup();
        programs
    };
    assert_eq!(advised("the command server"), ["server"]);
    assert_eq!(advised("everything"), ["compiler", "server"]);
}

#[test]
fn what_others_flush_alone_is_not_the_recorded_programs_tlb() {
    let lines = said("the command server", 0, 900);
    assert!(
        one(&lines, "not your TLB").contains("the recorded programs sent and took no interrupts"),
        "{lines:#?}"
    );
    assert!(lines.iter().all(|line| !line.contains("ost from")), "{lines:#?}");
}

/// Returns the kernel's account of the server's CPU time.
fn account() -> Item {
    Item::CpuTime(ran("server", 10_000_000_000, 1_000_000_000))
}

#[test]
fn the_fewer_were_timed_of_many_the_wider_is_what_they_cost() {
    let share = |timed: u64| {
        let mut all = recorded("the command server", timed, 0);
        all.item(count("csd:csd_queue_cpu", 10_000, timed), &mut ());
        all.item(account(), &mut ());
        let report = Report::new(all, None);
        let share = report.programs[0].share.unwrap();
        (share.least, share.most, report.answer)
    };
    // All 10 000 interrupts are alike. In each the initiator waits 4 us to 9 us, and the target loses 2 us.
    let (least, most, lines) = share(2);
    assert!(least == 0.0 && most > 2.0 * 0.0099, "{least} {most}");
    let verdict = one(&lines, "Unknown: ");
    assert!(verdict.contains("2 of server's 10 000 interrupts timed, so up to "), "{verdict}");
    let (few, many) = (share(60), share(5_000));
    assert!(0.0 < few.0 && few.0 < many.0 && many.1 < few.1 && few.1 < most, "{few:?} {many:?}");
}

#[test]
fn of_one_interrupt_is_said_that_it_is_one_and_nothing_of_what_was_not_filled() {
    let lines = said("the command server", 1, 0);
    assert!(one(&lines, "Interrupts").starts_with("Interrupts 1 in "), "{lines:#?}");
    let site = one(&lines, "Most from");
    assert!(site.ends_with(": 1 (100 %)"), "{site}");
    let flushes = one(&lines, "with 1 flush");
    assert!(flushes.contains("with 1 flush, 0 pages"), "{flushes}");
    assert!(lines.iter().all(|line| !line.contains("refilled")), "{lines:#?}");
}

#[test]
fn threads_with_a_name_of_their_own_are_named_beside_the_program() {
    let thread = |names: &[&str]| {
        let mut all = recorded("the command server", 0, 0);
        for (at, name) in names.iter().enumerate() {
            let mut add = |event: &str, time_ns, fields| {
                let mut event = sample(time_ns, (7, name), event, fields);
                event.tid = 70 + at as u32;
                all.item(Item::Sample(event), &mut ());
            };
            interrupt(&mut add, at as u64 * 20_000);
        }
        let report = Report::new(all, None);
        let said = one(&report.answer, "Most from").to_owned();
        (report.sites[0].thread.clone(), said)
    };
    let (most, said) = thread(&["worker-1", "worker-20", "worker-3", "flusher"]);
    assert_eq!(most.as_deref(), Some("worker-*"));
    assert!(said.contains(" server (worker-*), "), "{said}");
    // Threads of the program's name, and a thread that sends half, are none of their own.
    assert_eq!(thread(&["server", "server", "flusher"]).0, None);
    assert_eq!(thread(&["flusher", "worker-1"]).0, None);
}

#[test]
fn why_events_are_missing_is_said_as_far_as_the_kernel_says_it() {
    let note = |lost: &[(LossReason, u64)]| {
        let mut all = Attribution::new();
        for &(why, count) in lost {
            let (time_ns, cpu) = (0, 0);
            let lost = LostEvents { why, time_ns, cpu, count };
            all.item(Item::Lost(lost), &mut ());
        }
        let notes = Report::new(all, None).notes;
        notes.into_iter().find(|note| note.contains("lost")).unwrap()
    };
    let full = note(&[(LossReason::Full, 3)]);
    assert!(full.starts_with("3 events were lost because their buffer was full:"), "{full}");
    let unexplained = note(&[(LossReason::Unexplained, 1)]);
    assert!(unexplained.starts_with("1 event was lost for an unknown reason:"), "{unexplained}");
    assert!(!unexplained.contains("buffer"), "{unexplained}");
    let both = note(&[(LossReason::Full, 3), (LossReason::Unexplained, 2)]);
    assert!(
        both.starts_with(
            "5 events were lost, 3 because their buffer was full and 2 for an unknown reason:"
        ),
        "{both}"
    );
}

#[test]
fn what_the_recorder_does_to_other_cpus_stands_for_nothing_that_was_not_recorded() {
    let mut all = recorded("the command server", 100, 0);
    for function in ["remote_function", "rcu_exp_handler"] {
        ran_function(&mut all, 50_000_000, function);
    }
    window(&mut all, 0, 20_000_000);
    all.item(count("csd:csd_queue_cpu", 1000, 100), &mut ());
    let others = Report::new(all, None).others;
    let count = |cause| others.iter().find(|other| other.cause == cause).unwrap().count;
    assert_eq!((count("perf"), count("RCU")), (1, 10));
}

#[test]
fn what_is_no_shootdown_is_counted_where_only_stretches_are_recorded() {
    let mut all = recorded("the command server", 100, 0);
    for (function, count) in [("ipi_mb", 3001), ("rcu_exp_handler", 1000)] {
        let function = ("func".into(), Value::Text(function.into()));
        let fields = vec![function, number("count", count)];
        add(&mut all, 30_000_000, (9, "other"), "sums:queued", fields);
    }
    // One such function was recorded in a window, and took 2 us.
    ran_function(&mut all, 10_000_000, "ipi_mb");
    window(&mut all, 0, 20_000_000);
    let report = Report::new(all, None);
    let told = |cause| {
        let found = report.others.iter().find(|other| other.cause == cause);
        found.map(|other| (other.count, other.ns)).unwrap()
    };
    assert_eq!(told("membarrier"), (3001, Some(3001.0 * 2000.0)));
    assert_eq!(told("RCU"), (1000, None));
    one(&report.answer, ", 2.4 % of all function calls");
    one(&report.answer, "3 001 for membarrier (ipi_mb), 6.0 ms in all");
}

#[test]
fn interrupts_that_nobody_was_seen_to_send_are_not_said_to_be_none() {
    let said = |row: u64| {
        let mut all = recorded("the command server", 0, 0);
        // It flushed its own TLB during the recording.
        let fields = vec![number("reason", 3), number("pages", 1)];
        add(&mut all, 1_000, (7, "server"), "tlb:tlb_flush", fields);
        for (when, counts, time_ns) in
            [(ReadTime::Before, vec![0, 0], 1), (ReadTime::After, vec![row, 0], 4_000_000_001)]
        {
            let name = "TLB".into();
            let interrupts = vec![Interrupts { name, counts, description: String::new() }];
            let statistics = Statistics { interrupts, ..read(when, time_ns) };
            all.item(Item::Statistics(statistics), &mut ());
        }
        Report::new(all, None).answer.concat()
    };
    assert!(said(0).contains("there was no shootdown interrupt"));
    assert!(said(37).contains("too few interrupts for 1 %"));
    for missed in [42, 400] {
        assert!(
            said(missed).contains("most interrupts in /proc/interrupts were not recorded"),
            "{missed}"
        );
    }
}

#[test]
fn an_initiator_that_returns_before_its_target_is_seen_to_be_done_has_waited_for_it() {
    let mut all = recorded("the command server", 0, 0);
    for round in 0..100 {
        let at = round * 200_000;
        let mut add = |event: &str, after: u64, fields| {
            add(&mut all, at + after, (7, "server"), event, fields)
        };
        add("syscalls:sys_enter_madvise", 0, vec![]);
        add("csd:csd_queue_cpu", 1_000, work());
        add("csd:csd_function_entry", 3_000, work());
        add("syscalls:sys_exit_madvise", 4_000, vec![]);
        // The target answers before its function returns.
        add("csd:csd_function_exit", 5_000, work());
    }
    let report = Report::new(all, None);
    let waited = report.sites[0].initiator;
    assert_eq!(report.sites[0].timed, 100);
    assert_eq!((waited.least, waited.most), (300_000.0, 300_000.0));
}

#[test]
fn what_begins_in_one_window_and_ends_in_another_is_not_put_together() {
    // The last `later` events of one flush are in the second window.
    let stolen = |later: usize| {
        let mut all = recorded("the command server", 0, 0);
        let events = [
            ("syscalls:sys_enter_madvise", vec![]),
            ("csd:csd_queue_cpu", work()),
            ("csd:csd_function_entry", work()),
            ("csd:csd_function_exit", work()),
            ("syscalls:sys_exit_madvise", vec![]),
        ];
        let second = events.len() - later;
        for (number, (event, fields)) in events.into_iter().enumerate() {
            let at = number as u64 * 1_000;
            if number == second {
                window(&mut all, 0, at);
            }
            let at = at + if number >= second { 5_000_000 } else { 0 };
            add(&mut all, at, (7, "server"), event, fields);
        }
        window(&mut all, 5_000_000, 6_000_000);
        let site = Report::new(all, None).sites.remove(0);
        (site.stolen.most, site.initiator.least, site.initiator.most)
    };
    assert_eq!(stolen(0), (1_000.0, 2_000.0, 3_000.0));
    assert_eq!(stolen(1), (1_000.0, 2_000.0, 3_000.0));
    for later in [2, 3] {
        let (stolen, least, most) = stolen(later);
        assert_eq!((stolen, least), (0.0, 0.0), "{later}");
        assert!(most <= 3_000.0, "{later}: {most}");
    }
}

/// Adds the event of a flush for this reason on a CPU.
fn flushed(all: &mut Attribution, time_ns: u64, cpu: u32, reason: u64) {
    let fields = vec![number("reason", reason), number("pages", 1)];
    let mut flushed = sample(time_ns, (7, "server"), "tlb:tlb_flush", fields);
    flushed.cpu = cpu;
    all.item(Item::Sample(flushed), &mut ());
}

#[test]
fn no_cpu_interrupts_itself_where_targets_alone_tell_of_flushes() {
    let mut all = recorded("the command server", 0, 0);
    add(&mut all, 1_000, (7, "server"), "syscalls:sys_enter_madvise", vec![]);
    // CPU 0 requests a flush. Then it and another CPU flush for a request.
    for (time_ns, cpu, reason) in [(2_000, 0, 4), (3_000, 0, 1), (4_000, 1, 1)] {
        flushed(&mut all, time_ns, cpu, reason);
    }
    add(&mut all, 5_000, (7, "server"), "syscalls:sys_exit_madvise", vec![]);
    assert_eq!(all.received, 2);
    let report = Report::new(all, None);
    assert_eq!(report.sites[0].interrupts, 1);
}

#[test]
fn a_flush_long_after_the_last_request_is_no_answer_to_it() {
    // The thread continues without an event of its own, so the request stays open.
    let answered_after = |later_ns: u64| {
        let mut all = recorded("the command server", 0, 0);
        for (time_ns, cpu, reason) in [(1_000, 0, 4), (1_000 + later_ns, 1, 1)] {
            flushed(&mut all, time_ns, cpu, reason);
        }
        assert_eq!(all.received, 1);
        let site = Report::new(all, None).sites.remove(0);
        (site.interrupts, site.initiator.most)
    };
    let (interrupts, most) = answered_after(100_000);
    assert!(interrupts == 1 && most >= 99_000.0, "{most}");
    // After 84 ms it can't be the answer. Its own request wasn't recorded.
    assert_eq!(answered_after(84_000_000), (0, 0.0));
}

#[test]
fn a_program_of_which_few_were_timed_and_that_loses_little_at_most_is_not_left_out() {
    let mut all = recorded("everything", 60, 0);
    for at in [1_000_000_000, 2_000_000_000] {
        flush(&mut all, at, 11, "shell");
    }
    all.item(count("csd:csd_queue_cpu", 310, 62), &mut ());
    all.item(account(), &mut ());
    all.item(Item::CpuTime(ran("shell", 0, 250_000_000)), &mut ());
    let lines = Report::new(all, None).answer;
    assert!(lines[0].contains("no program loses 1 %"), "{lines:#?}");
}

#[test]
fn what_the_kernel_added_up_is_laid_at_the_sites_that_were_recorded_and_exactly() {
    let mut all = recorded("the command server", 10, 0);
    for (call, count, waited_ns) in [("madvise", 5_000, 20_000), ("munmap", 300, 40_000)] {
        let sum = summed(3_000_000, (7, "server"), call, count, waited_ns);
        all.item(Item::Sample(sum), &mut ());
    }
    let taken = vec![number("interrupts", 5_300), number("work_ns", 10_600_000)];
    add(&mut all, 3_000_000, (9, "compiler"), "sums:taken", taken);
    all.item(account(), &mut ());
    let report = Report::new(all, None);
    let site = |call: &str| report.sites.iter().find(|site| site.call == call).unwrap();
    let (recorded, unseen) = (site("madvise"), site("munmap"));
    assert_eq!((recorded.interrupts, recorded.requests, recorded.whole), (5_000, 5_000, 10));
    assert_eq!((unseen.interrupts, unseen.requests, unseen.whole), (300, 300, 0));
    assert!((recorded.initiator.least / 100e6 - 1.0).abs() < 0.001, "{recorded:?}");
    assert_eq!(unseen.initiator.least, 12e6);
    assert_eq!(report.attributed, 5_300);
    let compiler = report.programs.iter().find(|row| row.name == "compiler").unwrap();
    assert_eq!((compiler.taken, compiler.stolen.least), (5_300, 10.6e6));
    assert_eq!(compiler.waited.most, 0.0);
    // These are 112 ms of 11 s.
    one(&report.answer, "It is the TLB: server loses 1.");
}

#[test]
fn sums_of_two_places_of_a_call_go_to_their_own_sites() {
    let frame = |name: &str| frame(name, "/bin/server");
    let mut all = recorded("the command server", 0, 0);
    let enter = "syscalls:sys_enter_madvise";
    let mut at = 1_000;
    for (place, times) in [("shrink", 4), ("decay", 6)] {
        for _ in 0..times {
            let mut add = |event: &str, later, fields, stack: &[Frame]| {
                let mut sample = sample(at + later, (7, "server"), event, fields);
                sample.stack = stack.into();
                all.item(Item::Sample(sample), &mut ());
            };
            add(enter, 0, vec![number("behavior", 4)], &[]);
            add("csd:csd_queue_cpu", 1_000, work(), &[frame(place), frame("main")]);
            add("csd:csd_function_entry", 3_000, work(), &[]);
            add("csd:csd_function_exit", 5_000, work(), &[]);
            add("syscalls:sys_exit_madvise", 10_000, vec![], &[]);
            at += 20_000;
        }
    }
    for (place, count) in [("shrink", 900), ("decay", 90), ("grow", 9)] {
        let mut sum = summed(at, (7, "server"), "madvise", count, 10_000);
        sum.stack = [frame(place)].into();
        all.item(Item::Sample(sum), &mut ());
    }
    let report = Report::new(all, None);
    let sent = |place: &str| {
        let of = report.sites.iter().filter(|site| site.frames[0] == place);
        of.map(|site| site.interrupts).collect::<Vec<_>>()
    };
    assert_eq!((sent("shrink"), sent("decay"), sent("grow")), (vec![900], vec![90], vec![9]));
}
