//! What is known of this host, its clocks, and what this process may open.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::perf::sample::Host;

/// The recording's clock, in nanoseconds: `CLOCK_MONOTONIC`, which other programs can read as well.
pub fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this process.
pub(super) fn spent_ns() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

/// CPU time of another process, of all its threads; `None` if it has ended.
pub(super) fn process_ns(pid: u32) -> Option<u64> {
    // How Linux names the clock of a process's threads: by its number's complement.
    let clock = (!(pid.cast_signed()) << 3) | 2;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to `time` alone, which lives.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0)
        .then(|| time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
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

/// The buffer of each of so many CPUs: at most what 30 000 flushes a second fill with stacks of four kilobytes in an
/// eighth of a second, and a quarter of a gigabyte in all.
pub(super) fn buffer_for(cpus: usize) -> usize {
    ((256 << 20) / cpus.max(1)).clamp(LEAST_BUFFER, 16 << 20)
}

/// What Linux lets everybody have (`kernel.perf_event_mlock_kb`), and the least that is of use.
pub(super) const LEAST_BUFFER: usize = 512 << 10;

/// How many files this process might open before it was let open as many as it may: each event is two on each CPU.
pub(super) struct FileLimit(Rlimit);

impl FileLimit {
    /// Raises it.
    pub(super) fn raise() -> Self {
        let before = getrlimit(Resource::Nofile);
        let limit = FileLimit(before);
        limit.raised();
        limit
    }

    fn raised(&self) {
        let current = self.0.maximum;
        // If this is refused, opening the events says what is missing.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, ..self.0 });
    }

    /// Does something as if it had not been raised: what is started then inherits what it would have.
    pub(super) fn without<T>(&self, start: impl FnOnce() -> T) -> T {
        let _ = setrlimit(Resource::Nofile, self.0);
        let started = start();
        self.raised();
        started
    }
}

/// This thread before others while it lives: the thread that empties buffers must not wait for those that fill them.
///
/// A real-time thread is run at once. Niceness is not enough: where each session or control group has its share, it
/// orders only the threads of one.
pub(super) struct Ahead(Option<Before>);

/// How the thread was scheduled.
enum Before {
    /// By this policy, with this priority.
    Policy(libc::c_int, libc::sched_param),
    /// With this niceness.
    Nice(i32),
}

/// What a thread starts is not scheduled by its policy: a flag of that policy.
const RESET: libc::c_int = libc::SCHED_RESET_ON_FORK;

impl Ahead {
    /// From now on, as far as this process may. What a real-time thread starts is scheduled as any other; what a thread
    /// with a niceness starts has that niceness, too.
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
            return Self(Some(Before::Policy(policy, param)));
        }
        let before = getpriority_process(None).ok();
        let ahead = before.is_some() && setpriority_process(None, -15).is_ok();
        Self(before.filter(|_| ahead).map(Before::Nice))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // It was allowed to rise, so it may fall; but to take the flag away may be refused.
        match self.0.take() {
            Some(Before::Policy(policy, param)) => {
                let _ = scheduled(policy, param) || scheduled(policy | RESET, param);
            }
            Some(Before::Nice(before)) => {
                let _ = rustix::process::setpriority_process(None, before);
            }
            None => {}
        }
    }
}

/// Has this thread scheduled by a policy and its flags, if it may.
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
            let ahead = Ahead::begin();
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
        assert!(
            [before, libc::SCHED_RR | RESET].contains(&meanwhile),
            "{meanwhile}"
        );
        // Where the flag has stayed, the second time is as the first all the same.
        assert_eq!(read() & !RESET, meanwhile & !RESET);
        let flagged = scheduled(before | RESET, libc::sched_param { sched_priority: 0 });
        let ahead = flagged.then(Ahead::begin);
        assert!(ahead.is_none() || policy() & !RESET == meanwhile & !RESET);
    }
}
