//! Opens recordings and reads them to their end.

use std::path::Path;

use indicatif::{ProgressBar, ProgressStyle};
use quell_record::attribute::{Attribution, Observer};
use quell_record::import::Import;
use quell_record::perf::Source;
use quell_record::perf::file::Recording;
use quell_record::workload::{CallCollector, Calls};

use quell_model::usage::usage;

/// Reads a recording to its end and returns its analysis and its calls. Shows the progress.
pub fn analysed(
    source: &mut dyn Source,
    observer: &mut dyn Observer,
) -> anyhow::Result<(Attribution, Calls)> {
    let bar = bar();
    let mut heard = CallCollector::new(source);
    let all = quell_record::analyse(&mut heard, observer, &mut |share, events| {
        if let Some(share) = share {
            bar.set_position((share * 1000.0) as u64);
        }
        bar.set_message(format!("{events} events"));
        true
    });
    bar.finish_and_clear();
    Ok((all?, heard.calls))
}

/// Opens a recording, or the text of another recorder, and returns it with its name.
pub fn open(path: &Path) -> anyhow::Result<(Box<dyn Source>, String)> {
    if path != Path::new("-")
        && let Some(what) = is_endless(path)
    {
        return Err(usage(format_args!(
            "{}: {what} may never end; write its text to a file, or pipe it into `-`",
            path.display()
        )));
    }
    let source: Box<dyn Source> = match Recording::is_one(path) {
        true => Box::new(Recording::open(path)?),
        false => Box::new(Import::open(path).map_err(usage)?),
    };
    Ok((source, path.display().to_string()))
}

/// Returns a description of a file that may never end, or `None` for other files.
fn is_endless(path: &Path) -> Option<&'static str> {
    // These files in tracefs and procfs look like all others, but reading them waits for more.
    const WAIT: [&str; 3] = ["trace_pipe", "trace_pipe_raw", "kmsg"];
    let about = std::fs::metadata(path).ok()?;
    if about.is_dir() {
        return None;
    }
    let waits = path.file_name().is_some_and(|name| WAIT.iter().any(|of| name == *of));
    match about.is_file() {
        true => (waits && about.len() == 0).then_some("a file that waits for more"),
        false => Some("a device or a pipe"),
    }
}

/// Returns a progress bar, hidden if standard error isn't a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1000);
    if let Ok(style) = ProgressStyle::with_template("reading {bar:30} {percent} % {msg}") {
        bar.set_style(style);
    }
    bar
}
