//! How long the processes ran that a recording is about: what the kernel says of each, looked at from time to time.

use std::collections::BTreeMap;

use crate::counters::process;
use crate::sample::Ran;

/// Of more processes than this it is not looked at each time: that would cost more than it tells.
const MOST: usize = 64;

/// A process, as it was seen first and last.
#[derive(Debug)]
struct Seen {
    /// Nanoseconds in the program and in the kernel.
    first: (u64, u64),
    last: Ran,
}

/// The processes that were seen.
#[derive(Debug, Default)]
pub(super) struct Times(BTreeMap<u32, Seen>);

impl Times {
    /// Looks at them as the recording begins: what they did before counts for nothing.
    pub(super) fn begin(&mut self, pids: impl Iterator<Item = u32>) {
        self.see(pids, |ran| (ran.user_ns, ran.kernel_ns));
    }

    /// Looks at them again, and for the first time at those that have come.
    pub(super) fn look(&mut self, pids: impl Iterator<Item = u32>) {
        self.see(pids, |_| (0, 0));
    }

    fn see(&mut self, pids: impl Iterator<Item = u32>, first: fn(&Ran) -> (u64, u64)) {
        for pid in pids.take(MOST) {
            if let Some(last) = process(pid) {
                let first = self
                    .0
                    .get(&pid)
                    .map_or_else(|| first(&last), |seen| seen.first);
                self.0.insert(pid, Seen { first, last });
            }
        }
    }

    /// What they did since, by name.
    pub(super) fn ran(&self) -> Vec<Ran> {
        let mut sums: BTreeMap<&str, Ran> = BTreeMap::new();
        for Seen { first, last } in self.0.values() {
            let sum = sums.entry(&last.comm).or_insert_with(|| Ran {
                comm: last.comm.clone(),
                user_ns: 0,
                kernel_ns: 0,
            });
            sum.user_ns += last.user_ns.saturating_sub(first.0);
            sum.kernel_ns += last.kernel_ns.saturating_sub(first.1);
        }
        sums.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_did_before_is_not_counted() {
        let mut times = Times::default();
        let seen = |first, (user_ns, kernel_ns)| Seen {
            first,
            last: Ran {
                comm: "a".into(),
                user_ns,
                kernel_ns,
            },
        };
        times.0.insert(1, seen((10, 20), (15, 27)));
        times.0.insert(2, seen((0, 0), (1, 1)));
        let [ran] = &times.ran()[..] else {
            panic!("one name");
        };
        assert_eq!((ran.user_ns, ran.kernel_ns), (6, 8));
    }
}
