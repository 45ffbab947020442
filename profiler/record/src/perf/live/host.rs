//! Reads this host's properties and clocks, and raises this process's limits.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::perf::sample::Host;

/// Returns the recording's clock in nanoseconds. It's `CLOCK_MONOTONIC`, which other programs can read as well.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Returns the CPU time of this process.
pub(super) fn spent_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// Returns the CPU time of all threads of another process. `None` if it has ended.
pub(super) fn process_ns(pid: u32) -> Option<u64> {
    // Linux identifies the clock of a process by the complement of its number.
    let clock = (!(pid.cast_signed()) << 3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes to `time` alone, which lives.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0)
        .then(|| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// Returns this thread's CPU time for `work`, in nanoseconds.
pub(super) fn timed(work: impl FnOnce()) -> f64 {
    let before = nanoseconds(ClockId::ThreadCPUTime);
    work();
    (nanoseconds(ClockId::ThreadCPUTime) - before) as f64
}

/// Reads a clock in nanoseconds.
fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads the kernel's release, the CPUs and the processor's model.
pub(super) fn host() -> Host {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| {
        let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
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

/// Lists the CPUs that are online.
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

/// Returns the size of each CPU's buffer.
///
/// It's at most 16 MB, and all buffers together have at most 256 MB. For example, 30 000 flushes a second with 4 KB of
/// stack each fill 16 MB in an eighth of a second.
pub(super) fn buffer_for(cpus: usize) -> usize {
    ((256 << 20) / cpus.max(1)).clamp(LEAST_BUFFER, 16 << 20)
}

/// The smallest useful buffer. Linux grants it to every user (`kernel.perf_event_mlock_kb`).
pub(super) const LEAST_BUFFER: usize = 512 << 10;

/// The limit on open files before we raised it. Each event needs two files on each CPU.
pub(super) struct FileLimit(Rlimit);

impl FileLimit {
    /// Raises the limit as far as allowed.
    pub(super) fn raise() -> Self {
        let before = getrlimit(Resource::Nofile);
        let limit = FileLimit(before);
        limit.raised();
        limit
    }

    fn raised(&self) {
        let current = self.0.maximum;
        // If this fails, opening the events fails later, with an error that explains it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..self.0 });
    }

    /// Runs `start` with the old limit, so that a child process inherits that.
    pub(super) fn without<T>(&self, start: impl FnOnce() -> T) -> T {
        let _ = setrlimit(Resource::Nofile, self.0);
        let started = start();
        self.raised();
        started
    }
}

/// A higher priority for this thread, until dropped.
///
/// The thread that empties buffers must not wait for the threads that fill them. A real-time thread runs at once.
/// Niceness isn't enough: it only orders threads within a session or control group that has a CPU share of its own.
pub(super) struct RaisedPriority(Option<OldPriority>);

/// The thread's previous scheduling.
enum OldPriority {
    Policy(libc::c_int, libc::sched_param),
    /// A niceness.
    Nice(i32),
}

/// The flag of a policy that children don't inherit.
const RESET: libc::c_int = libc::SCHED_RESET_ON_FORK;

impl RaisedPriority {
    /// Raises the priority as far as allowed. Children don't inherit real-time priority, but they do inherit niceness.
    pub(super) fn begin() -> Self {
        use rustix::process::{getpriority_process, setpriority_process};
        let mut param = libc::sched_param { sched_priority: 0 };
        // SAFETY: the policy of the calling thread is asked for, and the kernel writes its priority into `param`, which
        // lives.
        let policy = unsafe {
            let policy = libc::sched_getscheduler(0);
            libc::sched_getparam(0, &raw mut param);
            policy
        };
        let first = libc::sched_param { sched_priority: 1 };
        if policy & !RESET == libc::SCHED_OTHER && scheduled(libc::SCHED_RR | RESET, first) {
            return Self(Some(OldPriority::Policy(policy, param)));
        }
        let before = getpriority_process(None).ok();
        let ahead = before.is_some() && setpriority_process(None, -15).is_ok();
        Self(before.filter(|_| ahead).map(OldPriority::Nice))
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        // Lowering a priority is always allowed, but removing the flag may be refused.
        match self.0.take() {
            Some(OldPriority::Policy(policy, param)) => {
                let _ = scheduled(policy, param) || scheduled(policy | RESET, param);
            }
            Some(OldPriority::Nice(before)) => {
                let _ = rustix::process::setpriority_process(None, before);
            }
            None => {}
        }
    }
}

/// Sets this thread's policy and flags. Returns whether that was allowed.
fn scheduled(policy: libc::c_int, param: libc::sched_param) -> bool {
    // SAFETY: the calling thread is meant, and the kernel only reads `param`.
    unsafe { libc::sched_setscheduler(0, policy, &raw const param) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reader_is_scheduled_as_before_once_it_has_read_and_may_read_again() {
        // SAFETY: the calling thread is meant.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let read = || {
            let ahead = RaisedPriority::begin();
            let meanwhile = policy();
            drop(ahead);
            let param = libc::sched_param { sched_priority: 0 };
            assert!(
                policy() == before || !scheduled(before, param),
                "{} and not {before}",
                policy()
            );
            meanwhile
        };
        let meanwhile = read();
        assert!([before, libc::SCHED_RR | RESET].contains(&meanwhile), "{meanwhile}");
        // Even if the flag stayed, the second time must work like the first.
        assert_eq!(read() & !RESET, meanwhile & !RESET);
        let flagged = scheduled(before | RESET, libc::sched_param { sched_priority: 0 });
        let ahead = flagged.then(RaisedPriority::begin);
        assert!(ahead.is_none() || policy() & !RESET == meanwhile & !RESET);
    }
}
