//! Runs Chromium for tests of pages. It shows a page in a frame of a given width, and queries its content.
//!
//! The test of the command's report uses it, too.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Finds text whose contrast with its background is below 4.5 (WCAG, level AA).
const FAINT: &str = r##"
  const canvas = page.createElement("canvas"), to = canvas.getContext("2d", { willReadFrequently: true });
  canvas.width = canvas.height = 1;
  const paint = colour => { to.fillStyle = colour; to.fillRect(0, 0, 1, 1); };
  const luminance = () => [...to.getImageData(0, 0, 1, 1).data].slice(0, 3)
    .map(part => part / 255).map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  const style = one => page.defaultView.getComputedStyle(one);
  const faint = [];
  for (const one of page.querySelectorAll("main *")) {
    const own = [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim() !== "");
    if (!own || one.closest("svg, select, script, style") || one.getClientRects().length === 0) continue;
    const around = [];
    for (let up = one; up; up = up.parentElement) around.unshift(up);
    for (const up of around) paint(style(up).backgroundColor);
    const behind = luminance();
    paint(style(one).color);
    const text = luminance();
    const contrast = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
    if (contrast < 4.5) faint.push(contrast.toFixed(1) + " " + one.textContent.slice(0, 40));
  }
  return faint;
"##;

/// A browser, and a folder for its files.
pub struct Browser {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Browser {
    /// Finds the first Chromium in `PATH`. If there is none, prints past the test harness that `what` is skipped.
    ///
    /// # Panics
    /// If there is none, and `QUELL_REQUIRE_BROWSER` is set.
    pub fn find(what: &str) -> Option<Browser> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        let program = ["chromium", "chromium-browser", "google-chrome"]
            .iter()
            .flat_map(|name| places.iter().map(move |place| place.join(name)))
            .find(|file| file.is_file());
        let Some(program) = program else {
            assert!(
                std::env::var_os("QUELL_REQUIRE_BROWSER").is_none(),
                "a browser must be here: install chromium"
            );
            // The harness captures `eprintln!`, but this line must be visible in every run.
            let line = format!("SKIPPED: {what} in a browser: there is no chromium here\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        Some(Browser { program, folder })
    }

    /// Returns a folder for files that belong to the browser's run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Checks that all text of a page is readable on a phone and a laptop, in the light and dark themes.
    ///
    /// # Panics
    /// If some text is too faint.
    pub fn check_contrast(&self, page: &str) {
        let dark = "(prefers-color-scheme: dark)";
        assert!(page.contains(dark), "the page has no dark theme");
        for (name, theme) in [("light", "not all"), ("dark", "all")] {
            for width in [390, 1280] {
                let faint = self.ask(&page.replace(dark, theme), width, FAINT);
                assert_eq!(faint, serde_json::json!([]), "{name}, at {width}");
            }
        }
    }

    /// Shows a page in a frame of this width, and runs a script there. Returns its result. `page` is the script's
    /// document.
    pub fn ask(&self, page: &str, width: u32, script: &str) -> Value {
        let escaped = page.replace('&', "&amp;").replace('"', "&quot;");
        let around = format!(
            r##"<!doctype html><meta charset="utf-8"><body style="margin:0">
<iframe id="frame" srcdoc="{escaped}" style="border:0;width:{width}px;height:900px"></iframe>
<pre id="found"></pre>
<script>
document.getElementById("frame").onload = event => {{
  const found = (page => {{ {script} }})(event.target.contentDocument);
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>"##
        );
        let file = self.folder().join(format!("at-{width}.html"));
        std::fs::write(&file, around).expect("a page");
        let output = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
            .args(["--virtual-time-budget=5000", "--window-size=1400,1000", "--hide-scrollbars"])
            .arg(format!("--user-data-dir={}", self.folder().join("profile").display()))
            .arg(format!("file://{}", file.display()))
            .output()
            .expect("the browser starts");
        let dom = String::from_utf8_lossy(&output.stdout);
        let found = dom.split("<pre id=\"found\">").nth(1);
        let found = found.and_then(|rest| rest.split("</pre>").next());
        let found = found.filter(|found| !found.is_empty());
        let found = found.unwrap_or_else(|| panic!("the browser shows no page: {output:?}"));
        let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
        serde_json::from_str(&found).unwrap_or_else(|error| panic!("{error}: {found}"))
    }
}
