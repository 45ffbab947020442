//! Checks memory that is given back and filled again. The programs use each possible call, and interrupt no CPU.

use quell_record::attribute::Attribution;
use quell_record::perf::{CpuTime, Item, Value};
use quell_record::report::Report;

use crate::answer::{one, recorded};
use crate::written::{Fields, add, number, prices, ran, summed};

const MB: u64 = 1 << 20;
const PAGES: u64 = 100;
const BYTES: u64 = PAGES << 12;

/// The calls of one round: name, arguments, result, and whether it flushes.
type Calls = [(&'static str, Fields, u64, bool)];

/// Returns the report on a server with one thread. In each of 300 rounds it makes these calls, and then touches 100
/// pages from 1 MiB on.
///
/// By the kernel's account it had 60 times as many page faults, at 2 us each, in 11 s.
fn churned(calls: &Calls) -> Report {
    let mut all = recorded("the command server", 0, 0);
    let mut add = |at: u64, event: &str, fields| add(&mut all, at, (7, "server"), event, fields);
    for round in 0..300_u64 {
        let mut at = 1_000_000 + round * 1_000_000;
        for (call, arguments, result, flushes) in calls {
            add(at, &format!("syscalls:sys_enter_{call}"), arguments.clone());
            if *flushes {
                let mut flush = vec![number("reason", 3), number("pages", PAGES)];
                // The recorder reads a vector from the copy of the stack.
                if *call == "process_madvise" {
                    let ranges = format!("{MB}+4096,{}+{}", MB + 4096, BYTES - 4096);
                    flush.push(("ranges".into(), Value::Text(ranges.into())));
                }
                add(at + 1_000, "tlb:tlb_flush", flush);
            }
            let result = vec![number("ret", *result)];
            add(at + 5_000, &format!("syscalls:sys_exit_{call}"), result);
            at += 10_000;
        }
        for page in 0..PAGES {
            let address = vec![number("address", MB + (page << 12))];
            add(at + page * 1_000, "exceptions:page_fault_user", address);
        }
    }
    // Two interrupts are negligible against the cost of page faults.
    let call = calls[calls.len() - 1].0;
    let sum = summed(400_000_000, (7, "server"), call, 2, 10_000);
    all.item(Item::Sample(sum), &mut ());
    account(&mut all, 60 * 300 * PAGES);
    Report::new(all, None)
}

fn account(all: &mut Attribution, faults: u64) {
    all.item(prices(2_000.0), &mut ());
    let ran = CpuTime { faults, ..ran("server", 6_000_000_000, 5_000_000_000) };
    all.item(Item::CpuTime(ran), &mut ());
}

fn range(start: u64, bytes: u64) -> Fields {
    vec![number("addr", start), number("len", bytes)]
}

fn mapping(prot: u64, flags: u64) -> Fields {
    let mut all = range(MB, BYTES);
    all.extend([number("prot", prot), number("flags", flags), number("fd", 5), number("off", 0)]);
    all
}

/// Checks that page faults are attributed to the call that gave the memory back. The advice must be about this call,
/// and the verdict must name page faults.
#[test]
fn page_faults_are_laid_at_the_call_that_gave_the_memory_back() {
    let grow = vec![number("brk", MB + BYTES)];
    let shrink = vec![number("brk", MB)];
    let resize =
        |old, new| vec![number("addr", MB - BYTES), number("old_len", old), number("new_len", new)];
    let hole = vec![number("fd", 5), number("mode", 3), number("offset", 0), number("len", BYTES)];
    let cut = vec![number("fd", 5), number("length", 0)];
    let advise = vec![number("pidfd", 7), number("behavior", 4)];
    let shared = || ("mmap", mapping(3, 1), MB, false);
    let cases: [(&str, &Calls); 7] = [
        ("brk", &[("brk", grow, MB + BYTES, false), ("brk", shrink, MB, true)]),
        // Java's G1 maps over memory to give it back, and again to make it usable.
        ("mmap", &[("mmap", mapping(0, 0x4032), MB, true), ("mmap", mapping(3, 0x32), MB, false)]),
        ("mmap", &[("mmap", mapping(3, 0x32), MB, true)]),
        (
            "mremap",
            &[
                ("mremap", resize(2 * BYTES, BYTES), MB - BYTES, true),
                ("mremap", resize(BYTES, 2 * BYTES), MB - BYTES, false),
            ],
        ),
        ("process_madvise", &[("process_madvise", advise, BYTES, true)]),
        ("fallocate", &[shared(), ("fallocate", hole, 0, true)]),
        ("ftruncate", &[shared(), ("ftruncate", cut, 0, true)]),
    ];
    for (call, calls) in cases {
        let report = churned(calls);
        let site = report.sites.iter().find(|site| site.call == call && site.requests > 0);
        let site = site.unwrap_or_else(|| panic!("no site of {call}: {:#?}", report.sites));
        // This is the kernel's count. In the first round no call had given the memory back before.
        assert!(site.refaults >= 59 * 299 * PAGES, "{call}: {site:?}");
        one(&report.answer, "Verdict    It is page faults, not your TLB: server 33 to 45 %");
        one(&report.answer, "45 % system time; 1 800 000 page faults");
        let advice = report.advice.first();
        let advice = advice.unwrap_or_else(|| panic!("{call}: {:#?}", report.sites));
        assert_eq!((advice.kind, &*advice.call), ("keep", call), "{advice:?}");
        let share = advice.share.unwrap();
        assert!(share.least > 0.2 && share.most < 0.5, "{call}: {share:?}");
    }
}

#[test]
fn calls_that_fail_or_give_nothing_back_have_no_page_faults() {
    let error = -22_i64 as u64;
    let cases: [&Calls; 4] = [
        &[("munmap", range(MB, BYTES), error, true)],
        &[("mmap", mapping(3, 0x22), MB, true)],
        &[("madvise", range(MB, BYTES), 0, true)],
        &[("brk", vec![number("brk", MB + BYTES)], MB + BYTES, true)],
    ];
    for calls in cases {
        let report = churned(calls);
        assert_eq!(report.sites[0].refaults, 0, "{:?}", report.sites[0]);
    }
}

/// Checks that the answer also reports page faults if nothing takes 1 %.
#[test]
fn it_is_not_the_tlb_only_where_the_rest_is_named() {
    let mut all = recorded("the command server", 60, 0);
    account(&mut all, 1_000);
    let lines = Report::new(all, None).answer;
    one(&lines, "It is not your TLB: no program loses 1 %");
    one(&lines, "Besides    45 % system time; 1 000 page faults (under 0.1 %)");
}
