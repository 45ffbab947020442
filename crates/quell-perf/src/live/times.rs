//! How long the processes ran that a recording is about: what `/proc/PID/stat` says of each, looked at from time to time.

use std::collections::BTreeMap;

use crate::counters::TICK_NS;
use crate::sample::Ran;

/// Of more processes than this it is not looked at each time: that would cost more than it tells.
const MOST: usize = 64;

/// Ticks in the program and in the kernel.
type Ticks = (u64, u64);

/// The processes that were seen, and how long each had run when it was seen first and last.
#[derive(Debug, Default)]
pub(super) struct Times(BTreeMap<u32, (String, Ticks, Ticks)>);

impl Times {
    /// Looks at them as the recording begins: what they did before counts for nothing.
    pub(super) fn begin(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids.take(MOST) {
            if let Some((comm, ticks)) = stat(pid) {
                self.0.insert(pid, (comm, ticks, ticks));
            }
        }
    }

    /// Looks at them again.
    pub(super) fn look(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids.take(MOST) {
            if let Some((comm, ticks)) = stat(pid) {
                let known = self.0.entry(pid).or_default();
                (known.0, known.2) = (comm, ticks);
            }
        }
    }

    /// What they did since, by name.
    pub(super) fn ran(&self) -> Vec<Ran> {
        let mut sums: BTreeMap<&str, Ticks> = BTreeMap::new();
        for (comm, first, last) in self.0.values() {
            let sum = sums.entry(comm).or_default();
            sum.0 += last.0.saturating_sub(first.0);
            sum.1 += last.1.saturating_sub(first.1);
        }
        let ran = sums.into_iter().map(|(comm, (user, kernel))| Ran {
            comm: comm.to_owned(),
            user_ns: user * TICK_NS,
            kernel_ns: kernel * TICK_NS,
        });
        ran.collect()
    }
}

/// A process's name and times.
fn stat(pid: u32) -> Option<(String, Ticks)> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The name stands in brackets, and may have some in it; the times are the twelfth and the thirteenth word behind it.
fn parse(text: &str) -> Option<(String, Ticks)> {
    let (before, after) = text.rsplit_once(')')?;
    let (_, comm) = before.split_once('(')?;
    let mut words = after.split_whitespace().skip(11);
    let mut ticks = || words.next()?.parse().ok();
    Some((comm.to_owned(), (ticks()?, ticks()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_is_read_and_so_are_the_times_behind_it() {
        let line = "7 (a) (b)) S 1 7 7 0 -1 4194304 100 0 0 0 31 42 5 6 20 0 1 0 9 1000 10";
        assert_eq!(parse(line), Some(("a) (b)".into(), (31, 42))));
        assert_eq!(parse("7 (a) S 1"), None);
    }

    #[test]
    fn what_a_process_did_before_is_not_counted() {
        let mut times = Times::default();
        times.0.insert(1, ("a".into(), (10, 20), (15, 27)));
        times.0.insert(2, ("a".into(), (0, 0), (1, 1)));
        let [ran] = &times.ran()[..] else {
            panic!("one name");
        };
        assert_eq!((ran.user_ns, ran.kernel_ns), (6 * TICK_NS, 8 * TICK_NS));
    }
}
