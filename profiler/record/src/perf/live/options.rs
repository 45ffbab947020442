//! Defines the options of a recording, and the reasons why recording is refused.

use std::io;

/// An event to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// Its name, `group:name`. If this kernel lacks it, it's listed in
    /// [`Host::missing`](crate::perf::sample::Host::missing).
    pub event: String,
    /// Whether it's kept in all processes. An interrupt concerns its sender, too.
    pub everywhere: bool,
    /// The stacks in its records.
    pub stack: Stack,
    /// Whether it's also counted exactly, all the time. That costs about 100 ns for each event, recorded or not.
    pub counted: CountMode,
    /// A filter of the events to record and count. `None` selects all.
    ///
    /// The same event may be listed several times, with different stacks and filters. Then its counts are added up.
    pub filter: Option<Filter>,
}

/// Whether an event is counted all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountMode {
    /// Never.
    No,
    /// Always.
    Yes,
    /// Only if the kernel lacks this other event, whose count costs less.
    Without(&'static str),
}

/// A filter of an event's occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// The filter in the kernel's language, for example `reason != 1`.
    pub text: String,
    /// Whether to record all occurrences if the kernel refuses the filter. Otherwise none is recorded. That's useful if
    /// another wanted event includes them.
    pub or_all: bool,
}

/// The stacks in an event's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// None.
    Absent,
    /// The kernel's, and the program's as far as it has frame pointers. If an earlier event of the same call had an
    /// unwound stack, we use that instead.
    Whole,
    /// The kernel's, and the program's by its unwind tables. For that, 4 KiB of its stack are copied for each event.
    Unwound,
}

/// Whether the kernel sums flushes all the time ([`bpf`](crate::perf::bpf)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SumMode {
    /// Never.
    No,
    /// If the kernel can, beside recording. Then events aren't counted.
    Beside,
    /// Always, and nothing else is recorded. Opening fails if the kernel can't.
    Alone,
}

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// The events to record.
    pub wanted: Vec<EventRequest>,
    /// The share of CPU time that recording may cost.
    ///
    /// It applies to the machine's busy time and to the recorded programs' time. At a higher cost, events are recorded
    /// only in windows ([`Item::Window`](crate::perf::sample::Item::Window)). `f64::INFINITY` records everything.
    pub overhead: f64,
    /// Whether the kernel sums flushes.
    pub sums: SumMode,
    /// Whether the recording continues after its command has ended, until all descendants have ended.
    ///
    /// We need this for daemons, for example, whose command ends at once.
    pub outlives: bool,
}

impl Default for Options {
    /// Returns options without events, and with a limit of 1 %.
    ///
    /// We aim for a cost below 2 %. The limit may be exceeded a little, and it doesn't include cache misses.
    fn default() -> Self {
        Self { wanted: Vec::new(), overhead: 0.01, sums: SumMode::No, outlives: false }
    }
}

/// The reason why recording isn't possible.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The process or control group to record doesn't exist.
    #[error("{0}")]
    Absent(String),
    /// A right, a file system, or an event is missing.
    #[error("{0}")]
    Missing(String),
    /// The kernel refused an event for another reason.
    #[error("the kernel refused to record {0}: {1}{help}", help = help(.1))]
    Event(String, io::Error),
    /// The command to record could not be started.
    #[error("{0} could not be started: {1}")]
    Command(String, io::Error),
    /// Another step failed.
    #[error("{0}: {1}")]
    Other(&'static str, io::Error),
}

/// Returns a remedy for an error of `perf_event_open`, if we know one.
fn help(error: &io::Error) -> String {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    let paranoid = paranoid.unwrap_or_default();
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!(
            "; run as root, or with CAP_PERFMON and a readable tracefs (CAP_DAC_READ_SEARCH, or `chmod -R a+rX /sys/kernel/tracing`), or set kernel.perf_event_paranoid to -1 (it is {}); in a container, the \
             seccomp profile must allow perf_event_open",
            paranoid.trim()
        ),
        Some(libc::EMFILE) => {
            "; each event needs two files on each CPU: raise `ulimit -n`".to_owned()
        }
        Some(libc::ENOSYS) => "; this kernel was built without perf events".to_owned(),
        _ => String::new(),
    }
}
