//! Explains in one line why recording is refused, and what would help.

use std::io;

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
    #[error("the kernel refused to record {event}: {error}{}", help(error))]
    Event {
        /// The event's name.
        event: String,
        /// The kernel's error.
        error: io::Error,
    },
    /// The command to record could not be started.
    #[error("{command} could not be started: {error}")]
    Command {
        /// The command's name.
        command: String,
        /// The system's error.
        error: io::Error,
    },
    /// Something else failed.
    #[error("{what}: {error}")]
    Other {
        /// The failed step.
        what: String,
        /// The system's error.
        error: io::Error,
    },
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
