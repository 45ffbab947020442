//! How long an emulator that says nothing is waited for.
//!
//! How many seconds a boot takes is up to the host: on a busy one the emulator may get no time at all.
//! So its silence is judged by what it went through itself since its last line, which Linux counts for
//! each of its threads (`/proc/PID/task/*/schedstat`):
//!
//! * *time that it ran*: a guest that runs and runs and says nothing;
//! * *time that it slept*, neither running nor waiting for a processor: a guest whose CPUs are all halted.
//!
//! Time that it waited for a processor counts for nothing. Where the host does not tell, and beyond all
//! this, there is a last resort in seconds, so long that no boot comes near it.

use std::time::{Duration, Instant};

/// How often the emulator is looked at while it is silent.
pub const LOOK: Duration = Duration::from_secs(1);
/// Looks in a row at which it had slept all the time since the one before.
const ASLEEP: u32 = 120;
/// It has slept if it wanted a processor for less than this part of a look.
const AWAKE: u32 = 50;
/// The last resort.
const LAST_RESORT: Duration = Duration::from_secs(2 * 60 * 60);

/// What the emulator's threads together went through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct EmulatorUsage {
    /// Time on a processor.
    ran: Duration,
    /// Time ready to run, without one.
    waited: Duration,
}

impl EmulatorUsage {
    /// What the process has gone through so far; `None` where the host does not tell.
    fn read(process: u32) -> Option<Self> {
        let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?;
        let mut sum = EmulatorUsage::default();
        for thread in threads.flatten() {
            // A thread that has ended meanwhile has no file.
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

/// Waits for one emulator.
pub struct EmulatorWait {
    process: u32,
    limit: Duration,
    silence: QuietPeriod,
    since: Instant,
}

/// What it went through since its last line.
#[derive(Default)]
struct QuietPeriod {
    /// At the last look.
    before: Option<EmulatorUsage>,
    /// How long it ran.
    ran: Duration,
    /// At how many looks in a row it slept.
    asleep: u32,
}

impl QuietPeriod {
    /// Takes a look into account; says why the wait is over, if it is.
    fn look(&mut self, now: Option<EmulatorUsage>, limit: Duration) -> Option<String> {
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
        if self.ran > limit {
            let seconds = limit.as_secs();
            return Some(format!("no word for {seconds} s of its processor time"));
        }
        (self.asleep >= ASLEEP).then(|| format!("asleep, and no word, at {ASLEEP} looks in a row"))
    }
}

impl EmulatorWait {
    /// For a process that may run for `limit` without a word.
    pub fn new(process: u32, limit: Duration) -> Self {
        EmulatorWait {
            process,
            limit,
            silence: QuietPeriod::default(),
            since: Instant::now(),
        }
    }

    /// It has said something.
    pub fn heard(&mut self) {
        self.silence = QuietPeriod::default();
        self.since = Instant::now();
    }

    /// Looks at it, a [`LOOK`] after it was last looked at or heard; says why the wait is over, if it
    /// is.
    pub fn look(&mut self) -> Option<String> {
        if self.since.elapsed() > LAST_RESORT {
            let seconds = LAST_RESORT.as_secs();
            return Some(format!("no word for {seconds} s, the last resort"));
        }
        self.silence
            .look(EmulatorUsage::read(self.process), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// After how many looks the wait is over, if each finds that it ran and waited for so long since the
    /// one before; `None` if it goes on.
    fn looks(ran: Duration, waited: Duration) -> Option<(u32, String)> {
        let mut silence = QuietPeriod::default();
        (0..10_000).find_map(|look| {
            let spent = EmulatorUsage {
                ran: ran * look,
                waited: waited * look,
            };
            Some((look, silence.look(Some(spent), LIMIT)?))
        })
    }

    #[test]
    fn only_time_that_it_had_counts() {
        let (count, why) = looks(LOOK, Duration::ZERO).expect("it ran without a word");
        assert_eq!(count, 61);
        assert!(why.contains("60 s of its processor time"), "{why}");
        // It runs for a tenth of the time, because others take the rest.
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
        let mut silence = QuietPeriod::default();
        assert!((0..10_000).all(|_| silence.look(None, LIMIT).is_none()));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_what_a_process_has_gone_through() {
        let me = std::process::id();
        let before = EmulatorUsage::read(me).expect("schedstat");
        // Counted when the thread leaves its processor or at the next tick: works until then.
        while EmulatorUsage::read(me).expect("schedstat").ran == before.ran {}
        assert_eq!(EmulatorUsage::read(u32::MAX), None);
    }
}
