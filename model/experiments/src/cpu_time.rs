//! Measures processor time, which other load on the host disturbs less than elapsed time.

use std::time::Duration;

/// Runs a body, and returns its result and the calling thread's processor time.
///
/// The time is `None` if the host lacks that clock.
pub fn spent_on<T>(body: impl FnOnce() -> T) -> (T, Option<Duration>) {
    let before = of_thread();
    let given = body();
    (given, before.zip(of_thread()).map(|(before, after)| after - before))
}

fn of_thread() -> Option<Duration> {
    #[cfg(unix)]
    return Some(read(rustix::time::ClockId::ThreadCPUTime));
    #[cfg(not(unix))]
    None
}

/// Returns the process's processor time so far, or `None` if the host lacks that clock.
pub fn of_process() -> Option<Duration> {
    #[cfg(unix)]
    return Some(read(rustix::time::ClockId::ProcessCPUTime));
    #[cfg(not(unix))]
    None
}

#[cfg(unix)]
fn read(clock: rustix::time::ClockId) -> Duration {
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the number of schedules per second of processor time.
pub fn rate(schedules: u64, spent: Option<Duration>) -> Option<f64> {
    let rate = schedules as f64 / spent?.as_secs_f64();
    rate.is_finite().then(|| rate.round())
}
