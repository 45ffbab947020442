//! The report in a browser: nothing is wider than the window, on a laptop and on a phone, and its figures are those
//! of the JSON.
//!
//! Needs Chromium. Where there is none the test says `SKIPPED`, past the test harness, and passes, unless
//! `QUELL_REQUIRE_BROWSER` is set: then it fails.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The first Chromium in `PATH`.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    ["chromium", "chromium-browser", "google-chrome"]
        .iter()
        .flat_map(|name| places.iter().map(move |place| place.join(name)))
        .find(|file| file.is_file())
}

/// A page that shows the report in a frame of that width, measures it there, and leaves what it found behind as JSON.
fn measuring(report: &str, width: u32) -> String {
    let escaped = report.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        r##"<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe id="frame" srcdoc="{escaped}" style="border:0;width:{width}px;height:900px"></iframe>
<pre id="found"></pre>
<script>
document.getElementById("frame").onload = event => {{
  const page = event.target.contentDocument;
  const room = page.documentElement.clientWidth;
  const wide = [...page.querySelectorAll("main *")].filter(one => {{
    // A drawing may be moved in its frame on a phone; what it is in may not stick out.
    if (one.closest("svg")) return false;
    return one.getBoundingClientRect().right > room + 1;
  }}).map(one => one.tagName + " " + one.textContent.slice(0, 60));
  const text = one => one.innerText.trim();
  const rows = [...page.querySelectorAll("#figures tr")]
    .map(row => [...row.querySelectorAll("td.n")].map(text)).filter(row => row.length > 0);
  const found = {{ room, scroll: page.documentElement.scrollWidth, wide, rows,
                   drawings: page.querySelectorAll("svg").length }};
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>"##
    )
}

/// What the page found at that width.
fn open(browser: &Path, folder: &Path, report: &str, width: u32) -> Value {
    let page = folder.join(format!("measure-{width}.html"));
    std::fs::write(&page, measuring(report, width)).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        .args([
            "--virtual-time-budget=5000",
            "--window-size=1400,1000",
            "--hide-scrollbars",
        ])
        .arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ))
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let dom = String::from_utf8_lossy(&output.stdout);
    let begin = "<pre id=\"found\">";
    let found = dom
        .split(begin)
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next());
    let found = found.unwrap_or_else(|| panic!("the browser shows no page: {output:?}"));
    let found = found
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"))
}

/// As the page and the command write figures.
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

#[test]
fn the_report_fits_its_window_and_says_what_the_json_says() {
    let Some(browser) = browser() else {
        assert!(
            std::env::var_os("QUELL_REQUIRE_BROWSER").is_none(),
            "a browser must be here: install chromium"
        );
        // Not `eprintln!`, which the harness captures: this is to be seen in every run.
        let line = "SKIPPED: the report in a browser: there is no chromium here\n";
        let _ = std::io::stderr().write_all(line.as_bytes());
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["reproduce", "--only", "dontneed", "--json", "--report"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected: Vec<Vec<String>> = json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            let percent = |key: &str| format!("{:+.1}", 100.0 * row[key].as_f64().unwrap());
            vec![
                digits(&row["published_before"]),
                digits(&row["published_after"]),
                digits(&row["model_before"]),
                digits(&row["model_after"]),
                percent("change_published"),
                percent("change_predicted"),
                digits(&row["all_on"]),
            ]
        })
        .collect();
    let report = std::fs::read_to_string(&path).unwrap();
    for width in [390, 768, 1280] {
        let found = open(&browser, folder.path(), &report, width);
        assert_eq!(found["room"], width, "{found}");
        assert_eq!(
            found["wide"].as_array().unwrap().len(),
            0,
            "at {width}: {found}"
        );
        assert!(
            found["scroll"].as_u64() <= Some(u64::from(width)),
            "at {width}: {found}"
        );
        assert!(found["drawings"].as_u64() > Some(3), "{found}");
        let rows: Vec<Vec<String>> = serde_json::from_value(found["rows"].clone()).unwrap();
        assert_eq!(rows, expected, "at {width}");
    }
    // The test sees what it is there to see.
    let wide = report.replace("<h2>", "<div style=\"width:1500px\">too wide</div><h2>");
    let found = open(&browser, folder.path(), &wide, 1280);
    assert!(!found["wide"].as_array().unwrap().is_empty(), "{found}");
}
