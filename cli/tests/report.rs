//! The report and the page on zeroing in a browser: nothing is wider than the window, on a laptop and on a phone. The
//! report's figures are those of the JSON.
//!
//! The tests need Chromium. Without it, they print `SKIPPED`, past the test harness, and pass. If
//! `QUELL_REQUIRE_BROWSER` is set, they fail instead.

#[path = "../../profiler/record/tests/browser/mod.rs"]
mod browser;

use std::process::{Command, Output};

use browser::Browser;
use serde_json::Value;

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

/// Runs the command, whose last argument is the page to write. Returns its output and the page.
fn drawn(browser: &Browser, arguments: &[&str]) -> (Output, String) {
    let path = browser.folder().join("page.html");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    let output = command.args(arguments).arg(&path).output().unwrap();
    (output, std::fs::read_to_string(&path).unwrap_or_default())
}

#[test]
#[ignore = "needs a browser: `cargo xtask ci pages`"]
fn the_report_fits_its_window_and_says_what_the_json_says() {
    let Some(browser) = Browser::find("the report") else {
        return;
    };
    let (output, report) =
        drawn(&browser, &["reproduce", "--only", "dontneed", "--json", "--report"]);
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
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
    for width in [390, 768, 1280] {
        let found = browser.ask(&report, width, MEASURE);
        assert_eq!(found["room"], width, "{found}");
        assert_eq!(found["wide"].as_array().unwrap().len(), 0, "at {width}: {found}");
        assert!(found["scroll"].as_u64() <= Some(u64::from(width)), "at {width}: {found}");
        assert!(found["drawings"].as_u64() > Some(3), "{found}");
        assert_eq!(found["over"], serde_json::json!([]), "at {width}");
        let rows: Vec<Vec<String>> = serde_json::from_value(found["rows"].clone()).unwrap();
        assert_eq!(rows, expected, "at {width}");
    }
    browser.check_contrast(&report);
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
    let (output, report) = drawn(&browser, &["reproduce", "--only", "readers", "--report"]);
    assert!(output.status.success(), "{output:?}");
    let found = browser.ask(&report, 1280, MEASURE);
    assert_eq!(found["over"], serde_json::json!([]));
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "measures this host for seconds: `cargo xtask ci pages`"]
fn the_page_on_zeroing_fits_its_window() {
    let Some(browser) = Browser::find("the page on zeroing") else {
        return;
    };
    let brief = ["--seconds", "1", "--max-bytes", "64K", "--html"];
    let (output, page) = drawn(&browser, &[&["measure", "clear"], &brief[..]].concat());
    // A missed target is no failure here.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    for width in [390, 768, 1280] {
        let found = browser.ask(&page, width, MEASURE);
        assert_eq!(found["wide"], serde_json::json!([]), "at {width}");
        assert!(found["scroll"].as_u64() <= Some(u64::from(width)), "{found}");
        assert_eq!(found["drawings"], 1, "{found}");
        assert_eq!(found["over"], serde_json::json!([]), "at {width}");
    }
    browser.check_contrast(&page);
}
