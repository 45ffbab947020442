//! Decides when to give up on a silent emulator.
//!
//! The time of a boot depends on the host: on a busy one the emulator may get no CPU time at all. So we use the
//! emulator's own times since its last line, which Linux counts for each thread (`/proc/PID/task/*/schedstat`):
//!
//! * *running time*: the guest runs and prints nothing;
//! * *sleeping time*, neither running nor waiting for a processor: all CPUs of the guest are halted.
//!
//! Time spent waiting for a processor doesn't count. On hosts without these counts, and as a last resort on all others,
//! there is a limit in seconds, so long that no boot reaches it.

use std::time::{Duration, Instant};

/// The time between two looks at a silent emulator.
pub const LOOK: Duration = Duration::from_secs(1);
/// The number of looks in a row after which an emulator that always slept is ended.
const ASLEEP: u32 = 120;
/// The emulator slept if it wanted a processor for less than this fraction of the time between looks.
const AWAKE: u32 = 50;
/// The limit of elapsed time for a silent emulator.
const LAST_RESORT: Duration = Duration::from_secs(2 * 60 * 60);

/// Times of all threads of the emulator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EmulatorUsage {
    /// Time on a processor.
    ran: Duration,
    /// Time ready to run, without a processor.
    waited: Duration,
}

impl EmulatorUsage {
    /// Reads the process's times so far; returns `None` on hosts without these counts.
    fn read(process: u32) -> Option<Self> {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
        let mut sum = EmulatorUsage::default();
        for thread in threads.flatten() {
            // A thread that has ended has no file.
            let Ok(text) = std::fs::read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let mut words = text.split_whitespace().map(str::parse);
            let (Some(Ok(ran)), Some(Ok(waited))) = (words.next(), words.next()) else {
                return None;
            };
            sum.ran += Duration::from_nanos(ran);
            sum.waited += Duration::from_nanos(waited);
        }
        (sum != EmulatorUsage::default()).then_some(sum)
    }
}

/// Decides when to give up on one emulator. Everything but the process and the limit is since its last line.
pub struct EmulatorWait {
    process: u32,
    limit: Duration,
    since: Instant,
    /// The times at the last look.
    before: Option<EmulatorUsage>,
    /// The time that it ran.
    ran: Duration,
    /// The number of looks in a row at which it slept.
    asleep: u32,
}

impl EmulatorWait {
    /// Creates a record for a process that may run for `limit` without output.
    pub fn new(process: u32, limit: Duration) -> Self {
        let (since, ran) = (Instant::now(), Duration::ZERO);
        EmulatorWait { process, limit, since, before: None, ran, asleep: 0 }
    }

    /// Records a line of output.
    pub fn heard(&mut self) {
        *self = EmulatorWait::new(self.process, self.limit);
    }

    /// Checks the emulator, a [`LOOK`] after the last check or line. Returns the reason to give up, if any.
    pub fn look(&mut self) -> Option<String> {
        if self.since.elapsed() > LAST_RESORT {
            let seconds = LAST_RESORT.as_secs();
            return Some(format!("no output for {seconds} s, the longest limit"));
        }
        self.judge(EmulatorUsage::read(self.process))
    }

    fn judge(&mut self, now: Option<EmulatorUsage>) -> Option<String> {
        let before = std::mem::replace(&mut self.before, now);
        let (Some(before), Some(now)) = (before, now) else {
            return None;
        };
        let ran = now.ran.saturating_sub(before.ran);
        let waited = now.waited.saturating_sub(before.waited);
        self.ran += ran;
        self.asleep = match ran + waited < LOOK / AWAKE {
            true => self.asleep + 1,
            false => 0,
        };
        if self.ran > self.limit {
            let seconds = self.limit.as_secs();
            return Some(format!("no output for {seconds} s of its processor time"));
        }
        (self.asleep >= ASLEEP)
            .then(|| format!("asleep and without output at {ASLEEP} checks in a row"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Returns the number of looks until we give up, with these times between looks, or `None` if we never do.
    fn looks(ran: Duration, waited: Duration) -> Option<(u32, String)> {
        let mut wait = EmulatorWait::new(0, LIMIT);
        (0..10_000).find_map(|look| {
            let spent = EmulatorUsage { ran: ran * look, waited: waited * look };
            Some((look, wait.judge(Some(spent))?))
        })
    }

    #[test]
    fn only_time_that_it_had_counts() {
        let (count, why) = looks(LOOK, Duration::ZERO).expect("it ran without a word");
        assert_eq!(count, 61);
        assert!(why.contains("60 s of its processor time"), "{why}");
        // The emulator runs for a tenth of the time, because others use the rest.
        let (count, _) = looks(LOOK / 10, LOOK * 9 / 10).expect("it ran without a word");
        assert_eq!(count, 601);
        assert_eq!(looks(Duration::ZERO, LOOK), None);
    }

    #[test]
    fn a_machine_that_sleeps_is_noticed() {
        let (count, why) = looks(LOOK / 1000, Duration::ZERO).expect("it sleeps");
        assert_eq!(count, ASLEEP);
        assert!(why.contains("asleep"), "{why}");
    }

    #[test]
    fn where_the_host_does_not_tell_only_the_last_resort_is_left() {
        let mut wait = EmulatorWait::new(0, LIMIT);
        assert!((0..10_000).all(|_| wait.judge(None).is_none()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_what_a_process_has_gone_through() {
        let me = std::process::id();
        let before = EmulatorUsage::read(me).expect("schedstat");
        // Linux counts the time when the thread leaves its processor, or at the next tick. So we work until then.
        while EmulatorUsage::read(me).expect("schedstat").ran == before.ran {}
        assert_eq!(EmulatorUsage::read(u32::MAX), None);
    }
}
