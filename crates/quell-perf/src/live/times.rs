//! How long the processes ran that a recording is about: what the kernel says of each, looked at from time to time.
//!
//! A process that lived between two looks has been seen by none. Its time is known all the same once its parent has waited for it,
//! because it is then in the parent's account of its children: what of that no look explains is theirs that ended, in equal parts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::counters::{Process, Used, process};
use crate::sample::{Change, Ran};

/// Of more processes than this it is not looked at each time: that would cost more than it tells.
const MOST: usize = 64;

/// A process, as it was seen first and last.
#[derive(Debug)]
struct Seen {
    first: Process,
    last: Process,
    /// Who forked it, if that was seen.
    parent: Option<u32>,
    /// How it has ended, if it has.
    ended: Option<Ended>,
}

/// How a process lived that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ended {
    /// It ran what its parent ran.
    Forked,
    /// It was there before, or loaded another program.
    Otherwise,
}

/// The processes that were seen.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Those that may be there now.
    running: BTreeSet<u32>,
    seen: BTreeMap<u32, Seen>,
    /// Those that were forked and have not ended: by whom, and whether another program was loaded.
    forked: HashMap<u32, (u32, bool)>,
    /// How many ended that nobody had looked at, by parent, name, and how they lived.
    unseen: HashMap<(u32, Arc<str>, Ended), u64>,
}

impl Times {
    /// Looks at these as the recording begins: what they did before counts for nothing.
    pub(super) fn begin(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids {
            self.running.insert(pid);
            if let Some(now) = process(pid) {
                self.see(pid, now.clone(), now);
            }
        }
    }

    /// A process begins that did nothing before.
    pub(super) fn started(&mut self, pid: u32) {
        self.running.insert(pid);
    }

    /// A process that the recording is about has changed, whose name this is.
    pub(super) fn change(&mut self, change: &Change, comm: &Arc<str>) {
        match *change {
            Change::Forked { pid, parent, .. } if pid != parent => {
                self.running.insert(pid);
                self.forked.insert(pid, (parent, false));
                // The number of one that ended is used again: what that one used stays its parent's.
                self.seen.remove(&pid);
            }
            Change::Named {
                pid, exec: true, ..
            } => {
                if let Some((_, loaded)) = self.forked.get_mut(&pid) {
                    *loaded = true;
                }
            }
            Change::Exited { pid, tid, .. } if pid == tid => {
                let ended = self.ended(pid);
                if let (false, Some((parent, how))) = (self.seen.contains_key(&pid), ended) {
                    *self.unseen.entry((parent, comm.clone(), how)).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    /// A process has ended: who forked it, if that was seen, and how it lived.
    fn ended(&mut self, pid: u32) -> Option<(u32, Ended)> {
        let forked = self.forked.remove(&pid);
        let how = match forked {
            Some((_, false)) => Ended::Forked,
            _ => Ended::Otherwise,
        };
        if let Some(seen) = self.seen.get_mut(&pid) {
            seen.ended.get_or_insert(how);
        }
        forked.map(|(parent, _)| (parent, how))
    }

    /// Looks at them again, and for the first time at those that have come.
    pub(super) fn look(&mut self) {
        self.look_by(process);
    }

    fn look_by(&mut self, process: impl Fn(u32) -> Option<Process>) {
        let mut looked = 0;
        for pid in self.running.clone() {
            if looked == MOST {
                break;
            }
            match process(pid) {
                Some(now) => {
                    looked += 1;
                    self.see(pid, Process::default(), now);
                }
                None => {
                    self.running.remove(&pid);
                    self.ended(pid);
                }
            }
        }
    }

    /// Whether none of them is there any more.
    pub(super) fn is_over(&self) -> bool {
        let is_running = super::scope::is_running;
        !self.running.iter().any(|&pid| is_running(pid))
    }

    /// What a process has used by now; by `first`, if it was not seen before.
    fn see(&mut self, pid: u32, first: Process, now: Process) {
        let parent = self.forked.get(&pid).map(|(parent, _)| *parent);
        let seen = self.seen.entry(pid).or_insert_with(|| Seen {
            first,
            last: now.clone(),
            parent,
            ended: None,
        });
        seen.last = now;
    }

    /// CPU time that all of them together have used since, in nanoseconds.
    pub(super) fn ns(&self) -> u64 {
        self.ran().iter().map(Ran::ns).sum()
    }

    /// What they did since, by name.
    pub(super) fn ran(&self) -> Vec<Ran> {
        let mut sums: BTreeMap<Arc<str>, Ran> = BTreeMap::new();
        let mut add = |comm: &str, used: Used, ended: Option<Ended>, shrank: u64| {
            let sum = sums.entry(comm.into()).or_insert_with(|| Ran {
                comm: comm.to_owned(),
                user_ns: 0,
                kernel_ns: 0,
                forked_user_ns: 0,
                shrank_pages: 0,
            });
            sum.user_ns += used.user_ns;
            sum.kernel_ns += used.kernel_ns;
            sum.shrank_pages += shrank;
            if ended == Some(Ended::Forked) {
                sum.forked_user_ns += used.user_ns;
            }
        };
        // Of those that were seen, how much their parents have in their own account by now.
        let mut explained: HashMap<u32, Used> = HashMap::new();
        for seen in self.seen.values() {
            if let (Some(parent), Some(_)) = (seen.parent, seen.ended) {
                let of = explained.entry(parent).or_default();
                *of = of.plus(seen.last.own).plus(seen.last.children);
            }
        }
        let mut ended: HashMap<u32, u64> = HashMap::new();
        for ((parent, ..), count) in &self.unseen {
            *ended.entry(*parent).or_default() += count;
        }
        for (pid, seen) in &self.seen {
            let Seen { first, last, .. } = seen;
            let shrank = first.pages.saturating_sub(last.pages);
            add(&last.comm, last.own.minus(first.own), seen.ended, shrank);
            let explained = explained.get(pid).copied().unwrap_or_default();
            let rest = last.children.minus(first.children).minus(explained);
            match ended.get(pid) {
                Some(&all) => {
                    for ((_, comm, how), &count) in
                        self.unseen.iter().filter(|((of, ..), _)| of == pid)
                    {
                        let part = rest.part(count as f64 / all as f64);
                        add(comm, part, Some(*how), 0);
                    }
                }
                // The last of what those did that were seen.
                None => add(&last.comm, rest, None, 0),
            }
        }
        sums.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of a process that has used so much by itself and by its children, in the program alone.
    fn told(comm: &str, own: u64, children: u64) -> Process {
        let used = |user_ns| Used {
            user_ns,
            kernel_ns: user_ns / 2,
        };
        Process {
            comm: comm.into(),
            own: used(own),
            children: used(children),
            pages: 1000 - own,
        }
    }

    fn forked(pid: u32, parent: u32) -> Change {
        Change::Forked {
            time_ns: 0,
            pid,
            tid: pid,
            parent,
            parent_tid: parent,
        }
    }

    fn exited(pid: u32) -> Change {
        Change::Exited {
            time_ns: 0,
            pid,
            tid: pid,
        }
    }

    fn loaded(pid: u32, comm: &Arc<str>) -> Change {
        Change::Named {
            time_ns: 0,
            pid,
            tid: pid,
            comm: comm.clone(),
            exec: true,
        }
    }

    /// By name: in the program, in the kernel, of the first by processes that were forked, how many pages went.
    fn ran(times: &Times) -> Vec<(String, u64, u64, u64, u64)> {
        let each = times.ran().into_iter();
        each.map(|ran| {
            (
                ran.comm,
                ran.user_ns,
                ran.kernel_ns,
                ran.forked_user_ns,
                ran.shrank_pages,
            )
        })
        .collect()
    }

    #[test]
    fn what_a_process_did_before_is_not_counted() {
        let mut times = Times::default();
        times.see(1, told("a", 10, 40), told("a", 10, 40));
        times.see(1, Process::default(), told("a", 16, 40));
        times.see(2, Process::default(), told("a", 2, 0));
        assert_eq!(ran(&times), [("a".to_owned(), 8, 4, 0, 6)]);
        assert_eq!(times.ns(), 12);
    }

    #[test]
    fn processes_that_nobody_looked_at_have_what_their_parent_waited_for() {
        let (server, tool): (Arc<str>, Arc<str>) = ("server".into(), "tool".into());
        let mut times = Times::default();
        times.see(1, told("server", 100, 50), told("server", 100, 50));
        for pid in 2..5 {
            times.change(&forked(pid, 1), &server);
        }
        times.change(&loaded(4, &tool), &tool);
        // One of them lives long enough to be looked at.
        times.see(2, Process::default(), told("server", 30, 0));
        for (pid, name) in [(2, &server), (3, &server), (4, &tool)] {
            times.change(&exited(pid), name);
        }
        // It has used 30 until the look; the other two, together, 100.
        times.see(1, Process::default(), told("server", 100, 180));
        assert_eq!(
            ran(&times),
            [
                ("server".to_owned(), 30 + 50, 15 + 25, 80, 0),
                ("tool".to_owned(), 50, 25, 0, 0)
            ]
        );
    }

    #[test]
    fn what_was_forked_and_still_runs_is_no_process_for_each_request() {
        let name: Arc<str> = "server".into();
        let mut times = Times::default();
        times.change(&forked(2, 1), &name);
        times.see(2, Process::default(), told("server", 30, 0));
        assert_eq!(times.ran()[0].forked_user_ns, 0);
        times.change(&exited(2), &name);
        assert_eq!(times.ran()[0].forked_user_ns, 30);
    }

    #[test]
    fn those_that_have_ended_are_not_looked_at_in_place_of_those_that_run() {
        let name: Arc<str> = "server".into();
        let mut times = Times::default();
        let last = 3 * MOST as u32;
        for pid in 2..=last {
            times.change(&forked(pid, 1), &name);
        }
        for pid in 2..last {
            times.change(&exited(pid), &name);
        }
        times.look_by(|pid| (pid == last).then(|| told("server", 1, 0)));
        assert!(times.seen.contains_key(&last));
        assert_eq!(times.running, BTreeSet::from([last]));
    }
}
