//! Shows the progress of long work on standard error.
//!
//! Work of less than two seconds shows nothing. On a terminal, longer work has a line with the share done and the time
//! left. Elsewhere it prints a line every ten seconds, so that logs show progress but stay short.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shorter work shows nothing.
const SOON: Duration = Duration::from_secs(2);
/// The interval of updates on a terminal.
const LOOK: Duration = Duration::from_millis(200);
/// The interval of lines elsewhere.
const LINE: Duration = Duration::from_secs(10);
/// The steps of the bar.
const WHOLE: u64 = 10_000;

/// The progress of some work at one moment.
#[derive(Clone, Debug)]
pub struct ProgressLine {
    /// The part that is done, from 0 to 1.
    pub share: f64,
    /// Additional text for the line.
    pub said: String,
}

impl From<f64> for ProgressLine {
    fn from(share: f64) -> Self {
        let said = String::new();
        ProgressLine { share, said }
    }
}

/// Does the work, and shows the progress that `look` returns meanwhile.
pub fn show<R>(what: &str, look: impl Fn() -> ProgressLine + Sync, work: impl FnOnce() -> R) -> R {
    let (working, over) = channel::<()>();
    let look = &look;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let began = Instant::now();
            let wait = |time| over.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            if io::stderr().is_terminal() {
                if !wait(SOON) {
                    return;
                }
                let bar = bar(what);
                while wait(LOOK) {
                    let glance = look();
                    bar.set_position((glance.share * WHOLE as f64) as u64);
                    bar.set_message(text(&glance, began.elapsed()));
                }
                bar.finish_and_clear();
            } else {
                while wait(LINE) {
                    let line = format!("{what}: {}\n", text(&look(), began.elapsed()));
                    // A closed standard error doesn't end the work.
                    let _ = io::stderr().write_all(line.as_bytes());
                }
            }
        });
        // This also runs if the work panics: dropping it ends the thread beside it.
        let _working = working;
        work()
    })
}

fn bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::new(WHOLE).with_prefix(what.to_owned());
    match ProgressStyle::with_template("{prefix} {bar:20} {wide_msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Formats the share done, the time left and the additional text.
fn text(glance: &ProgressLine, elapsed: Duration) -> String {
    let percent = 100.0 * glance.share;
    // Show a tenth if a whole percent takes long.
    let mut text = match percent < 1.0 {
        true => format!("{:.1} %", (10.0 * percent).floor() / 10.0),
        false => format!("{:.0} %", percent.floor()),
    };
    match left(glance.share, elapsed) {
        Some(left) => write!(text, ", {} left", length(left)),
        None => write!(text, " after {}", length(elapsed)),
    }
    .expect("a string takes everything");
    if !glance.said.is_empty() {
        text += ", ";
        text += &glance.said;
    }
    text
}

/// Returns the time left at the present pace; `None` if too little is done to tell: a hundredth in the first minute is
/// often a start that was slow.
fn left(share: f64, elapsed: Duration) -> Option<Duration> {
    let enough = if elapsed < Duration::from_secs(60) { 0.05 } else { 0.0 };
    if share <= enough {
        return None;
    }
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * (1.0 - share).max(0.0) / share).ok()
}

/// Formats a duration in its two largest units.
pub fn length(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} days {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_is_done() {
        let second = Duration::from_secs(1);
        assert_eq!(left(0.25, second), Some(3 * second));
        assert_eq!(left(1.0, second), Some(Duration::ZERO));
        assert_eq!(left(0.0, 100 * second), None);
        assert_eq!(left(0.01, second), None);
        assert_eq!(left(0.01, 99 * second), Some(9801 * second));
        assert_eq!(left(1e-9, Duration::MAX), None);
    }

    #[test]
    fn what_is_said_is_short() {
        let glance = ProgressLine { share: 0.2599, said: "3 violations".into() };
        assert_eq!(text(&glance, Duration::from_secs(60)), "25 %, 2 min 50 s left, 3 violations");
        assert_eq!(text(&0.0.into(), Duration::from_secs(7300)), "0.0 % after 2 h 1 min");
    }

    #[test]
    fn work_that_panics_is_not_waited_for() {
        let ended = std::panic::catch_unwind(|| show("x", || 0.0.into(), || panic!("on purpose")));
        assert!(ended.is_err());
    }
}
