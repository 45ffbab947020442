//! The summary of a recording and its cost.

use std::fmt;
use std::process::ExitStatus;
use std::time::Duration;

use crate::perf::sample::Count;

/// The summary of a recording.
#[derive(Debug, Default)]
pub struct Summary {
    /// Its duration.
    pub elapsed: Duration,
    /// The counts of events.
    pub counts: Vec<Count>,
    /// Events in the recording.
    pub kept: u64,
    /// Events that left no record, for any reason.
    pub lost: u64,
    /// The total time of windows.
    pub recorded: Duration,
    /// The recorder's own CPU time.
    pub recorder: Duration,
    /// CPU time that recording took from all programs.
    pub kernel: Duration,
    /// The number of pairs of turns by which the cost of windows was measured. If it's `None`, that is estimated from
    /// the number of events.
    pub pairs: Option<usize>,
    /// The CPU time of everything else.
    pub busy: Duration,
    /// The part of `kernel` that may have been taken from the recorded programs.
    pub hit: Duration,
    /// The CPU time of these programs without `hit`. `None` if all programs are recorded.
    pub used: Option<Duration>,
    /// The number of changes of the phase.
    pub turns: u64,
    /// The recorder's CPU time before and after the recording: opening events, and looking up names.
    pub around: Duration,
    /// The exit status of the recorded command, if there is one.
    pub exit: Option<ExitStatus>,
    /// Whether descendants of the command still ran when the recording ended.
    pub outlived: bool,
}

impl Summary {
    /// Returns the cost of the recording as a share.
    ///
    /// It's the larger one of two: the share of all CPU time, and the share of the recorded programs' CPU time. Infinite
    /// if the programs used no time beside the cost.
    pub fn overhead(&self) -> f64 {
        let of_all = share(self.recorder + self.kernel, self.busy);
        let of_used = self.used.map_or(0.0, |used| share(self.hit, used));
        of_all.max(of_used)
    }

    /// Formats the cost. Uses milliseconds if the programs ran too briefly for a percentage.
    pub fn overhead_text(&self) -> String {
        let spent = self.recorder + self.kernel;
        let (spent, of) = match self.used {
            Some(used) if share(self.hit, used) > share(spent, self.busy) => (self.hit, used),
            _ => (spent, self.busy),
        };
        match of < SHORT {
            true => format!("{:.1} ms", spent.as_secs_f64() * 1e3),
            false => format!("{:.2} %", self.overhead() * 100.0),
        }
    }
}

/// Below this CPU time of the programs, a percentage is meaningless.
const SHORT: Duration = Duration::from_millis(100);

/// Returns `spent` as a share of `of`. If both are zero, returns zero.
fn share(spent: Duration, of: Duration) -> f64 {
    match (spent.as_secs_f64(), of.as_secs_f64()) {
        (0.0, 0.0) => 0.0,
        (spent, of) => spent / of,
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        write!(
            f,
            "overhead {}: of CPU time, the recorder used {:.1} ms, recording took {:.1} ms from programs, and everything else used \
             {:.0} ms{}; {}; recorded during {:.1} % of {:.1} s, in {} turns; {} events lost",
            self.overhead_text(),
            ms(self.recorder),
            ms(self.kernel),
            ms(self.busy),
            match self.used {
                Some(used) => format!(
                    " ({:.0} ms of it the recorded programs, which lost {:.1} ms)",
                    ms(used),
                    ms(self.hit)
                ),
                None => String::new(),
            },
            match self.pairs {
                Some(pairs) => format!("windows measured in {pairs} pairs of turns"),
                None => "windows estimated from the number of events".to_owned(),
            },
            self.recorded.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9) * 100.0,
            self.elapsed.as_secs_f64(),
            self.turns,
            self.lost,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_that_cost_more_than_all_else_did_is_not_said_to_cost_nothing() {
        let ms = Duration::from_millis;
        let summary = |hit, used| Summary {
            recorder: ms(1),
            kernel: ms(1),
            busy: ms(1000),
            hit: ms(hit),
            used: Some(ms(used)),
            ..Summary::default()
        };
        assert_eq!(summary(0, 0).overhead_text(), "0.20 %");
        assert_eq!(summary(15, 150).overhead_text(), "10.00 %");
        assert_eq!(summary(97, 13).overhead_text(), "97.0 ms");
        assert!(summary(1, 0).to_string().starts_with("overhead 1.0 ms: "));
        let text = summary(10, 1000).to_string();
        assert!(text.starts_with("overhead 1.00 %: "), "{text}");
    }
}
