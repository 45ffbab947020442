//! The report and the page on zeroing in a browser: nothing is wider than the window, on a laptop and on a phone. The
//! report's figures are those of the JSON.
//!
//! The tests need Chromium. Without it, they print `SKIPPED`, past the test harness, and pass. If
//! `QUELL_REQUIRE_BROWSER` is set, they fail instead.

#[path = "../../profiler/record/tests/browser/mod.rs"]
mod browser;

use crate::command::{Ended, ended, quell};
use browser::Browser;
use serde_json::{Value, json};

/// A script that measures the report.
const MEASURE: &str = r##"
  const room = page.documentElement.clientWidth;
  const wide = [...page.querySelectorAll("main *")].filter(one => {
    // A drawing may be moved in its frame on a phone; what it is in may not stick out.
    if (one.closest("svg")) return false;
    return one.getBoundingClientRect().right > room + 1;
  }).map(one => one.tagName + " " + one.textContent.slice(0, 60));
  // Text of a drawing may not lie on other text.
  const over = [];
  for (const drawing of page.querySelectorAll("svg")) {
    const texts = [...drawing.querySelectorAll("text")].map(one => [one.getBoundingClientRect(), one.textContent]);
    texts.forEach(([a, first], at) => texts.slice(at + 1).forEach(([b, second]) => {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 2 && high > Math.min(a.height, b.height) / 2) over.push(first + " | " + second);
    }));
  }
  const text = one => one.innerText.trim();
  const rows = [...page.querySelectorAll("#figures tr")]
    .map(row => [...row.querySelectorAll("td.n")].map(text)).filter(row => row.length > 0);
  return { room, scroll: page.documentElement.scrollWidth, wide, over, rows,
                   drawings: page.querySelectorAll("svg").length };
"##;

/// Formats a figure like the page and the command.
fn digits(value: &Value) -> String {
    let Some(value) = value.as_f64() else {
        return "–".into();
    };
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Runs the command, whose last argument is the page to write. Returns how it ended and the page.
fn drawn(browser: &Browser, line: &str) -> (Ended, String) {
    let path = browser.folder().join("page.html");
    let ended = ended(quell(line).arg(&path));
    (ended, std::fs::read_to_string(&path).unwrap_or_default())
}

/// Fails unless the page fits windows of a phone, a tablet and a laptop. Returns what the script found in each.
fn assert_fits(browser: &Browser, page: &str) -> Vec<Value> {
    let in_window = |width: u32| {
        let found = browser.ask(page, width, MEASURE);
        assert_eq!(found["room"], width, "{found}");
        assert_eq!(found["wide"], json!([]), "at {width}");
        assert!(found["scroll"].as_u64() <= Some(u64::from(width)), "at {width}: {found}");
        assert_eq!(found["over"], json!([]), "at {width}");
        found
    };
    browser.check_contrast(page);
    [390, 768, 1280].map(in_window).into()
}

#[test]
#[ignore = "needs a browser: `cargo xtask ci pages`"]
fn the_report_fits_its_window_and_says_what_the_json_says() {
    let Some(browser) = Browser::find("the report") else {
        return;
    };
    let (output, report) = drawn(&browser, "reproduce --only dontneed --json --report");
    let json = output.code(0).json();
    let expected: Vec<Vec<String>> = json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let percent = |key: &str| match row[key].as_f64() {
                Some(share) => format!("{:+.1}", 100.0 * share),
                None => "–".into(),
            };
            vec![
                digits(&row["published_before"]),
                digits(&row["published_after"]),
                digits(&row["model_before"]),
                digits(&row["model_after"]),
                percent("before_off"),
                percent("change_published"),
                percent("change_predicted"),
                digits(&row["all_on"]),
            ]
        })
        .collect();
    for found in assert_fits(&browser, &report) {
        assert!(found["drawings"].as_u64() > Some(3), "{found}");
        let rows: Vec<Vec<String>> = serde_json::from_value(found["rows"].clone()).unwrap();
        assert_eq!(rows, expected);
    }
    // The test must notice a page that is too wide.
    let wide = report.replace("<h2>", "<div style=\"width:1500px\">too wide</div><h2>");
    let found = browser.ask(&wide, 1280, MEASURE);
    assert!(!found["wide"].as_array().unwrap().is_empty(), "{found}");
}

/// These experiments are smaller than the published ones, so their bars are in percent.
#[test]
#[ignore = "runs for a minute: `cargo xtask ci pages`"]
fn no_text_of_the_report_lies_on_other_text() {
    let Some(browser) = Browser::find("the report of the readers") else {
        return;
    };
    let (output, report) = drawn(&browser, "reproduce --only readers --report");
    output.code(0);
    let found = browser.ask(&report, 1280, MEASURE);
    assert_eq!(found["over"], json!([]));
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "measures this host for seconds: `cargo xtask ci pages`"]
fn the_page_on_zeroing_fits_its_window() {
    let Some(browser) = Browser::find("the page on zeroing") else {
        return;
    };
    let brief = "measure clear --seconds 1 --max-bytes 64K --html";
    let (output, page) = drawn(&browser, brief);
    // A missed target is no failure here.
    assert!(matches!(output.code, Some(0 | 1)), "{output:?}");
    for found in assert_fits(&browser, &page) {
        assert_eq!(found["drawings"], 1, "{found}");
    }
}
