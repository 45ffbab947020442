//! Checks that the page draws, searches, zooms and filters in a browser. It must never be wider than the window of a
//! laptop or a phone.
//!
//! Needs Chromium. If it's missing, the test prints `SKIPPED` past the test harness, and passes. If
//! `QUELL_REQUIRE_BROWSER` is set, it fails instead.

use std::io::Cursor;

use crate::browser::Browser;
use quell_record::attribute::Observer;
use quell_record::import::Import;
use quell_record::report::Report;
use quell_record::show::page;
use quell_record::show::perfetto::Perfetto;
use quell_record::show::timeline::Timeline;
use serde_json::Value;

const PERF: &str = include_str!("recordings/perf.txt");

/// Returns the page and the trace of a recording. Nothing was recorded from the first time of `gap` to the second.
fn shown(text: &str, gap: Option<(u64, u64)>) -> (String, Vec<u8>) {
    let mut source = Import::read(Cursor::new(text.to_owned()), "recording", None).unwrap();
    let mut observer = (Perfetto::new(Vec::new()), Timeline::default());
    let all = quell_record::analyse(&mut source, &mut observer, &mut |_, _| true).unwrap();
    if let Some((from_ns, to_ns)) = gap {
        observer.1.gap(from_ns, to_ns);
    }
    let report = Report::new(all, None);
    let replayed = page::Findings {
        before: vec!["The calls of <i>churn</i>, made again".into()],
        headings: vec!["change".into(), "interrupts gone".into()],
        rows: vec![vec!["one call for 16".into(), "92 %".into()]],
        after: vec!["Nothing that a kernel could do is above the noise here.".into()],
    };
    let slices = observer.1.finish();
    let title = "TLB shootdowns: a recording";
    let page = page::page(&report, &slices, Some(&replayed), title);
    (page, observer.0.finish().unwrap())
}

/// Uses the page as a reader does, and returns what it finds.
const USE: &str = r##"
  const by = id => page.getElementById(id);
  const room = page.documentElement.clientWidth;
  const wide = [...page.querySelectorAll("main *")].filter(one =>
    // Tables and drawings may be moved in their frames; what they are in may not stick out.
    !one.parentElement.closest(".wide, #flame") && one.getBoundingClientRect().right > room + 1
  ).map(one => one.tagName + " " + one.textContent.slice(0, 60));
  const boxes = () => [...by("flame").children];
  const count = boxes().length;
  const set = (id, value, kind) => { by(id).value = value; by(id).dispatchEvent(new Event(kind)); };
  set("search", "do_madvise", "input");
  const hit = boxes().filter(box => box.className === "f").length;
  const found = by("found").textContent;
  set("search", "", "input");
  const madvise = boxes().find(box => box.title.startsWith("__madvise"));
  const before = madvise.getBoundingClientRect().width;
  madvise.onclick();
  const after = boxes().find(box => box.title.startsWith("__madvise")).getBoundingClientRect().width;
  by("whole").click();
  const back = boxes().length;
  set("by", "1", "change");
  const stolen = boxes()[0].title;
  set("filter", "churn mprotect", "input");
  const rows = [...page.querySelectorAll("#sites tbody tr")];
  const left = rows.filter(row => !row.hidden).map(row => row.children[1].textContent);
  const ink = by("cpus").getContext("2d").getImageData(0, 0, by("cpus").width, by("cpus").height).data;
  const colours = new Set(); for (let at = 0; at < ink.length; at += 4) if (ink[at + 3] === 255) colours.add(ink[at] + "," + ink[at + 1]);
  return { room, scroll: page.documentElement.scrollWidth, wide, count, hit, found, before, after, back, stolen,
    rows: rows.length, left, colours: colours.size, answer: by("answer").children.length,
    matrix: page.querySelector("#matrix tbody td").textContent.trim(), size: getComputedStyle(page.body).fontSize,
    advice: page.querySelectorAll("#advice tbody tr").length,
    changes: page.querySelector("#changes tbody tr").textContent, markup: page.querySelectorAll("i").length };
"##;

#[test]
#[ignore = "needs a browser: `cargo xtask ci pages`"]
fn the_page_can_be_used_on_every_width() {
    let Some(browser) = Browser::find("the page of a recording") else {
        return;
    };
    let (page, _) = shown(PERF, None);
    for width in [390, 1280] {
        let found = browser.ask(&page, width, USE);
        assert_eq!(found["room"], width, "{found}");
        assert_eq!(found["wide"].as_array().unwrap().len(), 0, "at {width}: {found}");
        assert!(found["scroll"].as_u64() <= Some(u64::from(width)), "at {width}: {found}");
        assert!(found["count"].as_u64() > Some(10), "{found}");
        assert!(found["hit"].as_u64() > Some(0), "{found}");
        assert!(found["found"].as_str().unwrap().contains("90 interrupts"), "{found}");
        assert!(found["after"].as_f64() > found["before"].as_f64(), "{found}");
        assert_eq!(found["back"], found["count"], "{found}");
        assert!(found["stolen"].as_str().unwrap().starts_with("all: 1."), "{found}");
        let left = found["left"].as_array().unwrap();
        assert!(left.iter().all(|call| call == "mprotect") && !left.is_empty(), "{found}");
        assert!(found["rows"].as_u64() > Some(left.len() as u64), "{found}");
        assert!(found["colours"].as_u64() >= Some(2), "{found}");
        assert_eq!(found["matrix"], "97", "{found}");
        assert!(found["advice"].as_u64() > Some(0), "{found}");
        assert_eq!(found["changes"], "one call for 1692 %", "{found}");
        assert_eq!(found["markup"], 0, "{found}");
    }
    browser.check_contrast(&page);
    // Check that the test can detect an element that is too wide.
    let wide = page.replacen("<h2>", "<div style=\"width:1500px\">too wide</div><h2>", 1);
    let found = browser.ask(&wide, 1280, USE);
    assert!(!found["wide"].as_array().unwrap().is_empty(), "{found}");
}

#[test]
fn the_page_says_what_part_was_recorded() {
    let (whole, _) = shown(PERF, None);
    assert!(!whole.contains("Hatched parts"));
    // The recording has times from 40881.2649 s to 40881.2721 s.
    let gap = (40_881_267_000_000, 40_881_268_500_000);
    let (page, _) = shown(PERF, Some(gap));
    let said = page.split("id=\"recorded\">").nth(1).unwrap();
    let percent: f64 = said.split(' ').next().unwrap().parse().unwrap();
    assert!((1.0..99.0).contains(&percent), "{percent}");
}

#[test]
fn nothing_that_a_recording_says_becomes_part_of_the_page() {
    let evil = PERF
        .replace("flush_tlb_mm_range", "</script><script>evil()</script>")
        .replace("churn ", "<b>x</b> ");
    let (page, _) = shown(&evil, None);
    assert!(!page.contains("<script>evil"), "a function's name ends the script");
    assert!(!page.contains("<b>x"), "a thread's name is markup");
}

#[test]
fn the_trace_is_json_with_a_slice_for_each_interrupt() {
    let (_, trace) = shown(PERF, None);
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |kind: &str| events.iter().filter(|event| event["cat"] == kind).count();
    // One of the interrupts was taken by a program that isn't in the recording.
    assert_eq!(of("shootdown"), 96);
    let returned = PERF.matches(":sys_exit_").count();
    assert!((105..=returned).contains(&of("call")), "{} of {returned}", of("call"));
    assert!(of("wait") >= 90, "{}", of("wait"));
    let negative =
        events.iter().filter(|event| event["dur"].as_f64().is_some_and(|took| took < 0.0));
    assert_eq!(negative.count(), 0);
}

#[test]
fn an_arrow_leads_from_each_wait_to_its_interrupts() {
    let (_, trace) = shown(PERF, None);
    let trace: Value = serde_json::from_slice(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let place = |event: &Value| (event["pid"].clone(), event["tid"].clone());
    let ends = |phase: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["ph"] == phase).collect()
    };
    let around = |end: &Value, kind: &str| {
        let at = end["ts"].as_f64().unwrap();
        events.iter().any(|event| {
            let start = event["ts"].as_f64().unwrap_or(f64::MAX);
            let length = event["dur"].as_f64().unwrap_or_default();
            event["cat"] == kind
                && place(event) == place(end)
                && (start..=start + length).contains(&at)
        })
    };
    let (starts, arrivals) = (ends("s"), ends("f"));
    assert!(starts.len() >= 90, "{}", starts.len());
    assert_eq!(starts.len(), arrivals.len());
    for (start, arrival) in starts.into_iter().zip(arrivals) {
        assert_eq!(start["id"], arrival["id"]);
        assert!(start["ts"].as_f64() <= arrival["ts"].as_f64(), "{start} {arrival}");
        assert!(around(start, "wait"), "{start}");
        assert!(around(arrival, "shootdown"), "{arrival}");
    }
}
