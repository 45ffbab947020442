//! What is known of this host, its clocks, and what this process may open.

use std::io;

use rustix::time::{ClockId, clock_gettime};

use crate::sample::Host;

/// The recording's clock.
pub(super) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this process.
pub(super) fn spent_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// A clock in nanoseconds.
fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What is known of this host.
pub(super) fn host() -> Host {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim().to_owned())
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Host {
        kernel: kernel.trim().to_owned(),
        cpus: online().map_or(0, |cpus| cpus.len() as u32),
        processor: line("model name").unwrap_or_default(),
        virtual_machine: line("flags")
            .map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        ..Host::default()
    }
}

/// The CPUs that are online.
pub(super) fn online() -> io::Result<Vec<u32>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last);
        }
    }
    Ok(cpus)
}

/// The buffer of each of so many CPUs.
pub(super) fn buffer_for(cpus: usize) -> usize {
    ((256 << 20) / cpus.max(1)).clamp(512 << 10, 16 << 20)
}

/// Lets this process open as many files as it may: each event is two on each CPU.
pub(super) fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If this is refused, opening the events says what is missing.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}

/// This thread before others while it lives: the thread that empties buffers must not wait for those that fill them.
pub(super) struct Ahead(Option<i32>);

impl Ahead {
    /// From now on, as far as this process may.
    pub(super) fn begin() -> Self {
        use rustix::process::{getpriority_process, setpriority_process};
        let before = getpriority_process(None).ok();
        let ahead = before.is_some() && setpriority_process(None, -15).is_ok();
        Self(before.filter(|_| ahead))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // It was allowed to rise, so it may fall.
            let _ = rustix::process::setpriority_process(None, before);
        }
    }
}
