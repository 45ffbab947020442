//! Measures the CPU time of the recorded processes, from the kernel's account of each.
//!
//! We read the accounts from time to time.
//!
//! A process may start and end between two readings. Its time is known once its parent has waited for it, because then
//! it's in the parent's account of its children. Part of that account isn't explained by any reading. We split that
//! part evenly among the children that ended unseen, and it includes the time of their own children. Before that, each
//! child that we did read gets its time after its last reading, at its rate until then. We add an ended process to the
//! sum of its name once no more records of it can come.
//!
//! Time after the last reading is only in the parent's account. The parent of a recorded command is this process. So
//! once the command has ended, the kernel's account of our children gives the total ([`Times::whole`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::host::now_ns;
use crate::perf::counters::{Process, Usage, process};
use crate::perf::sample::{Change, CpuTime};

/// The largest number of processes to read at once. Reading more would cost too much, so the next reading continues
/// after them.
const MOST: usize = 64;

/// The accounts of a process at its first and last reading.
#[derive(Debug)]
struct Observation {
    first: Process,
    last: Process,
    read_ns: (u64, u64),
    /// The process that forked it, if known.
    parent: Option<u32>,
    ended: Option<Ending>,
}

/// The kind of an ended process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ending {
    /// It was forked, and still ran its parent's program.
    Forked,
    /// It's older than the recording, or ran another program.
    Otherwise,
}

#[derive(Clone, Copy, Debug)]
struct Forked {
    parent: u32,
    time_ns: u64,
    loaded: bool,
}

/// Children that ended, by name and kind: the number of those that no reading has seen, and the nanoseconds that the
/// others used after their last reading, as far as their rate tells.
type EndedChildren = FxHashMap<(Arc<str>, Ending), (u64, u64)>;

/// The recorded processes and their times.
#[derive(Debug, Default)]
pub(super) struct Times {
    /// Processes that may be running.
    running: BTreeSet<u32>,
    /// The last process of the latest reading.
    looked_at: u32,
    /// Processes that are known to have ended since the last reading.
    over: BTreeSet<u32>,
    /// Processes that no longer existed at the last reading. Records of them and of their children may come until the
    /// next.
    gone: BTreeSet<u32>,
    seen: BTreeMap<u32, Observation>,
    /// Forked processes that haven't ended.
    forked: FxHashMap<u32, Forked>,
    /// By parent.
    children: FxHashMap<u32, EndedChildren>,
    /// The part of each process's account for children that are no longer in `seen`.
    explained: FxHashMap<u32, Usage>,
    /// The sums of processes that are no longer in `seen`.
    past: Sums,
    /// The total, if it's known, and the name to charge if no process was seen.
    whole: Option<(Usage, String)>,
    /// The most resident pages of any process of the ended command, or 0.
    peak_pages: u64,
}

impl Times {
    /// Reads these processes at the start of the recording. Their earlier time doesn't count.
    pub(super) fn begin(&mut self, pids: impl Iterator<Item = u32>) {
        for pid in pids {
            self.running.insert(pid);
            if let Some(now) = process(pid) {
                self.see(pid, now.clone(), now);
            }
        }
    }

    pub(super) fn started(&mut self, pid: u32) {
        self.running.insert(pid);
    }

    /// Sets the total of the ended command and of all descendants that were waited for.
    ///
    /// The part that no reading has seen is split among the seen names in proportion. If there are none, it's charged
    /// to the command's name. The total doesn't include processes that no parent waited for.
    pub(super) fn whole(&mut self, used: Usage, command: &str, peak_pages: u64) {
        self.whole = Some((used, command.to_owned()));
        self.peak_pages = peak_pages;
    }

    /// Applies a change of a recorded process of this name. If `over` is set, it has no thread left, and we don't read
    /// it again.
    pub(super) fn change(&mut self, change: &Change, comm: &Arc<str>, over: bool) {
        if let (Change::Exited { time_ns, pid, .. }, true) = (change, over)
            && self.running.remove(pid)
        {
            self.ended(*pid, *time_ns);
            self.over.insert(*pid);
        }
        match *change {
            Change::Forked { time_ns, pid, parent, .. } if pid != parent => {
                if self.gone.remove(&pid) | self.over.remove(&pid) {
                    self.forget([pid].into());
                }
                self.running.insert(pid);
                let forked = Forked { parent, time_ns, loaded: false };
                self.forked.insert(pid, forked);
                // The number is reused. The time of the previous process remains in its parent's account.
                self.seen.remove(&pid);
            }
            Change::Named { pid, exec: true, .. } => {
                if let Some(forked) = self.forked.get_mut(&pid) {
                    forked.loaded = true;
                }
            }
            Change::Exited { time_ns, pid, tid, .. } if pid == tid => {
                let how = self.ended(pid, time_ns);
                let forked = self.forked.remove(&pid);
                if let (false, Some(Forked { parent, .. })) = (self.seen.contains_key(&pid), forked)
                    && (self.seen.contains_key(&parent) || self.running.contains(&parent))
                {
                    let children = self.children.entry(parent).or_default();
                    children.entry((comm.clone(), how)).or_default().0 += 1;
                }
            }
            _ => {}
        }
    }

    /// Marks a process as ended. Returns the kind.
    fn ended(&mut self, pid: u32, now_ns: u64) -> Ending {
        let how = match self.forked.get(&pid) {
            Some(Forked { loaded: false, .. }) => Ending::Forked,
            _ => Ending::Otherwise,
        };
        if let Some(seen) = self.seen.get_mut(&pid)
            && seen.ended.is_none()
        {
            seen.ended = Some(how);
            if let (late @ 1.., Some(parent)) = (seen.late_ns(now_ns), seen.parent) {
                let of = (seen.last.comm.as_str().into(), how);
                self.children.entry(parent).or_default().entry(of).or_default().1 += late;
            }
        }
        how
    }

    /// Reads these processes, and some of the others.
    pub(super) fn look(&mut self, first: &BTreeSet<u32>) {
        self.look_by(first, MOST, process);
    }

    /// Reads all processes.
    pub(super) fn look_at_all(&mut self) {
        self.look_by(&BTreeSet::new(), usize::MAX, process);
    }

    /// Reads the processes of `first` and up to `most` others in turn, if they're running.
    fn look_by(
        &mut self,
        first: &BTreeSet<u32>,
        most: usize,
        process: impl Fn(u32) -> Option<Process>,
    ) {
        let gone = std::mem::replace(&mut self.gone, std::mem::take(&mut self.over));
        self.forget(gone);
        let behind = self.running.range((Excluded(self.looked_at), Unbounded));
        let before = self.running.range(..=self.looked_at);
        let others = behind.chain(before).filter(|pid| !first.contains(pid));
        let in_turn: Vec<u32> = (first & &self.running).iter().chain(others).copied().collect();
        let mut looked = 0;
        for pid in in_turn {
            if !first.contains(&pid) {
                if looked == most {
                    break;
                }
                self.looked_at = pid;
            }
            match process(pid) {
                Some(now) => {
                    looked += usize::from(!first.contains(&pid));
                    self.see(pid, Process::default(), now);
                }
                None => {
                    self.running.remove(&pid);
                    self.ended(pid, now_ns());
                    self.gone.insert(pid);
                }
            }
        }
    }

    /// Adds these processes to the past sums, because no more records of them come.
    fn forget(&mut self, gone: BTreeSet<u32>) {
        if gone.is_empty() {
            return;
        }
        let explained = self.all_explained();
        for pid in gone {
            self.forked.remove(&pid);
            self.explained.remove(&pid);
            let children = self.children.remove(&pid).unwrap_or_default();
            let Some(seen) = self.seen.remove(&pid) else {
                continue;
            };
            let of = explained.get(&pid).copied().unwrap_or_default();
            self.past.add(&seen, of, &children);
            if let Some(parent) = seen.parent
                && self.seen.contains_key(&parent)
            {
                let below = self.explained.entry(parent).or_default();
                *below = below.plus(seen.used(of));
            }
        }
    }

    /// Returns the part of each process's account of children that ended children explain.
    ///
    /// A process may wait for children just before it ends. No reading of it contains these, but its parent's account
    /// does. So we add up from the youngest of a line of forks.
    fn all_explained(&self) -> FxHashMap<u32, Usage> {
        let mut explained = self.explained.clone();
        let ended = |seen: &Observation| seen.parent.filter(|_| seen.ended.is_some());
        let mut children: FxHashMap<u32, u32> = FxHashMap::default();
        for parent in self.seen.values().filter_map(ended) {
            *children.entry(parent).or_default() += 1;
        }
        let without = |pid: &&u32| !children.contains_key(pid);
        let mut next: Vec<u32> = self.seen.keys().filter(without).copied().collect();
        while let Some(pid) = next.pop() {
            let Some((seen, parent)) =
                self.seen.get(&pid).and_then(|seen| Some((seen, ended(seen)?)))
            else {
                continue;
            };
            let of = explained.get(&pid).copied().unwrap_or_default();
            let below = explained.entry(parent).or_default();
            *below = below.plus(seen.used(of));
            // Reused numbers may form a ring of parents, which has no youngest process.
            if let Some(left) = children.get_mut(&parent) {
                *left -= 1;
                if *left == 0 {
                    next.push(parent);
                }
            }
        }
        explained
    }

    /// Returns whether all processes have ended.
    pub(super) fn is_over(&self) -> bool {
        let is_running = super::scope::is_running;
        !self.running.iter().any(|&pid| is_running(pid))
    }

    /// Stores a reading of a process. `first` is its earlier usage if this is the first reading.
    fn see(&mut self, pid: u32, first: Process, now: Process) {
        let forked = self.forked.get(&pid);
        let read_ns = now_ns();
        let seen = self.seen.entry(pid).or_insert_with(|| Observation {
            first,
            last: now.clone(),
            read_ns: (forked.map_or(read_ns, |forked| forked.time_ns), read_ns),
            // 0 is the kernel.
            parent: forked.map(|forked| forked.parent).or((now.parent > 0).then_some(now.parent)),
            ended: None,
        });
        seen.last = now;
        seen.read_ns.1 = read_ns;
    }

    /// Returns the CPU time of all processes since the start, in nanoseconds.
    pub(super) fn ns(&self) -> u64 {
        self.ran().iter().map(CpuTime::ns).sum()
    }

    /// Returns the usage since the start by name.
    pub(super) fn ran(&self) -> Vec<CpuTime> {
        let mut sums = self.past.clone();
        let (explained, none) = (self.all_explained(), EndedChildren::default());
        for (pid, seen) in &self.seen {
            let of = explained.get(pid).copied().unwrap_or_default();
            sums.add(seen, of, self.children.get(pid).unwrap_or(&none));
        }
        if let Some((whole, command)) = &self.whole {
            sums.complete(*whole, command);
        }
        let with_peak = |ran| CpuTime { peak_pages: self.peak_pages, ..ran };
        sums.0.into_values().map(with_peak).collect()
    }
}

impl Observation {
    /// Returns the lifetime usage of the process and its children. These count with at least `explained`.
    fn used(&self, explained: Usage) -> Usage {
        self.last.own.plus(self.last.children.most(explained))
    }

    /// Returns the time that the process used between its last reading and now, at its rate until that reading.
    fn late_ns(&self, now_ns: u64) -> u64 {
        let (first_ns, last_ns) = self.read_ns;
        let used = self.last.own.minus(self.first.own).ns() as f64;
        let rate = used / last_ns.saturating_sub(first_ns).max(1) as f64;
        (rate * now_ns.saturating_sub(last_ns) as f64) as u64
    }
}

/// Usage by name.
#[derive(Clone, Debug, Default)]
struct Sums(BTreeMap<Arc<str>, CpuTime>);

impl Sums {
    /// Adds a process and its children that ended. The part `explained` of its account of children is added elsewhere.
    fn add(&mut self, seen: &Observation, explained: Usage, children: &EndedChildren) {
        let Observation { first, last, .. } = seen;
        let shrank = first.pages.saturating_sub(last.pages);
        let ran = self.put(&last.comm, last.own.minus(first.own), seen.ended);
        ran.shrank_pages += shrank;
        ran.processes += 1;
        let rest = last.children.minus(first.children).minus(explained);
        if children.is_empty() {
            self.put(&last.comm, rest, None);
            return;
        }
        let (unseen, late_ns) =
            children.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
        let of_late = match unseen {
            0 => rest,
            _ => rest.part((late_ns as f64 / rest.ns().max(1) as f64).min(1.0)),
        };
        let rest = rest.minus(of_late);
        for ((comm, how), &(count, ns)) in children {
            let late = of_late.part(ns as f64 / late_ns.max(1) as f64);
            let part = rest.part(count as f64 / unseen.max(1) as f64);
            self.put(comm, late.plus(part), Some(*how)).processes += count;
        }
    }

    /// Raises the sums to a known total.
    fn complete(&mut self, whole: Usage, command: &str) {
        let seen = self.0.values().fold(Usage::default(), |sum, ran| {
            sum.plus(Usage { user_ns: ran.user_ns, kernel_ns: ran.kernel_ns, faults: ran.faults })
        });
        let missing = whole.minus(seen);
        if seen.ns() == 0 {
            self.put(command, missing, None).processes += 1;
            return;
        }
        // A name's few ticks may all be in the kernel, so we split both parts of the missing time by the whole time.
        for ran in self.0.values_mut() {
            let part = missing.part(ran.ns() as f64 / seen.ns() as f64);
            let forked = ran.forked_user_ns as f64 / ran.user_ns.max(1) as f64;
            ran.forked_user_ns += (part.user_ns as f64 * forked) as u64;
            ran.user_ns += part.user_ns;
            ran.kernel_ns += part.kernel_ns;
            ran.faults += part.faults;
        }
    }

    fn put(&mut self, comm: &str, used: Usage, ended: Option<Ending>) -> &mut CpuTime {
        let sum = self
            .0
            .entry(comm.into())
            .or_insert_with(|| CpuTime { comm: comm.to_owned(), ..CpuTime::default() });
        sum.faults += used.faults;
        sum.user_ns += used.user_ns;
        sum.kernel_ns += used.kernel_ns;
        if ended == Some(Ending::Forked) {
            sum.forked_user_ns += used.user_ns;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times, and the processes that can be read now.
    #[derive(Default)]
    struct Simulated {
        times: Times,
        running: BTreeMap<u32, Process>,
        looked: Vec<u32>,
    }

    /// Returns a process with this user time of its own and of its children.
    fn told(comm: &str, own: u64, children: u64) -> Process {
        let used = |user_ns| Usage { user_ns, kernel_ns: user_ns / 2, faults: user_ns * 3 };
        let (own, children, pages) = (used(own), used(children), 1000 - own);
        Process { parent: 0, comm: comm.into(), own, children, pages }
    }

    impl Simulated {
        fn forked(&mut self, pid: u32, parent: u32) {
            self.times.change(&Change::forked(0, pid, parent), &"".into(), false);
        }

        fn exited(&mut self, pid: u32, name: &str) {
            self.times.change(&Change::exited(0, pid), &name.into(), false);
        }

        fn see(&mut self, pid: u32, name: &str, own: u64, children: u64) {
            self.times.see(pid, Process::default(), told(name, own, children));
        }

        /// Reads up to `most` processes, of which these run.
        fn look(&mut self, most: usize, running: &[(u32, &str, u64, u64)]) {
            let running = running.iter().map(|&(pid, name, own, of)| (pid, told(name, own, of)));
            self.running = running.collect();
            let looked = std::cell::RefCell::default();
            self.times.look_by(&BTreeSet::new(), most, |pid| {
                Vec::push(&mut looked.borrow_mut(), pid);
                self.running.get(&pid).cloned()
            });
            self.looked = looked.take();
        }

        /// Returns each name with its user time, kernel time, forked user time, and shrunk pages.
        fn ran(&self) -> Vec<(String, u64, u64, u64, u64)> {
            let of = |ran: CpuTime| {
                (ran.comm, ran.user_ns, ran.kernel_ns, ran.forked_user_ns, ran.shrank_pages)
            };
            self.times.ran().into_iter().map(of).collect()
        }

        fn user_ns(&self, name: &str) -> u64 {
            let found = self.ran().into_iter().find(|(known, ..)| known == name);
            found.map_or(0, |(_, user_ns, ..)| user_ns)
        }
    }

    #[test]
    fn what_a_process_did_before_is_not_counted() {
        let mut host = Simulated::default();
        host.times.see(1, told("a", 10, 40), told("a", 10, 40));
        host.see(1, "a", 16, 40);
        host.see(2, "a", 2, 0);
        assert_eq!(host.ran(), [("a".to_owned(), 8, 4, 0, 6)]);
        assert_eq!(host.times.ns(), 12);
    }

    #[test]
    fn what_a_grandchild_did_is_not_counted_again_in_the_account_of_who_waited_for_its_parent() {
        // A shell runs a tool. The tool runs a program, and ends as soon as it has waited for it.
        for forgotten in [false, true] {
            let mut host = Simulated::default();
            host.times.started(1);
            host.forked(2, 1);
            host.forked(3, 2);
            for (pid, own) in [(1, 1), (2, 2), (3, 500)] {
                host.see(pid, "sh", own, 0);
            }
            host.exited(3, "sh");
            if forgotten {
                host.times.forget([3].into());
            }
            host.exited(2, "sh");
            host.see(1, "sh", 1, 502);
            assert_eq!(host.times.ns(), 754, "{forgotten}");
            host.times.forget([2].into());
            assert_eq!(host.times.ns(), 754, "{forgotten}");
        }
    }

    #[test]
    fn processes_that_nobody_looked_at_have_what_their_parent_waited_for() {
        let mut host = Simulated::default();
        host.times.see(1, told("server", 100, 50), told("server", 100, 50));
        (2..5).for_each(|pid| host.forked(pid, 1));
        host.times.change(&Change::named(0, 4, "tool", true), &"tool".into(), false);
        // One of them lives long enough to be read.
        host.see(2, "server", 30, 0);
        for (pid, name) in [(2, "server"), (3, "server"), (4, "tool")] {
            host.exited(pid, name);
        }
        // That one has used 30 until the reading. The other two have used 100 together.
        host.see(1, "server", 100, 180);
        let faults = host.times.ran().into_iter().map(|ran| ran.faults);
        assert_eq!(faults.collect::<Vec<_>>(), [240, 150]);
        assert_eq!(
            host.ran(),
            [("server".to_owned(), 30 + 50, 15 + 25, 80, 0), ("tool".to_owned(), 50, 25, 0, 0)]
        );
    }

    #[test]
    fn what_a_child_used_after_its_last_reading_is_its_own() {
        let now = now_ns();
        for unseen in [false, true] {
            let mut host = Simulated::default();
            host.times.see(1, told("sh", 1, 0), told("sh", 1, 0));
            host.times.change(&Change::forked(now - 1_000_000_000, 2, 1), &"sh".into(), false);
            host.see(2, "tool", 30, 0);
            if unseen {
                host.forked(3, 1);
                host.exited(3, "short");
            }
            // It runs for half as long again.
            host.times.change(&Change::exited(now + 500_000_000, 2), &"tool".into(), false);
            host.see(1, "sh", 1, 30 + 20);
            let (tool, short) = if unseen { (44..=46, 4..=6) } else { (50..=50, 0..=0) };
            assert!(tool.contains(&host.user_ns("tool")), "{:?}", host.ran());
            assert!(short.contains(&host.user_ns("short")), "{:?}", host.ran());
            assert_eq!(host.user_ns("sh"), 0);
        }
    }

    #[test]
    fn a_process_that_is_known_to_be_over_is_not_looked_for() {
        for over in [false, true] {
            let mut host = Simulated::default();
            host.times.started(1);
            (2..5).for_each(|pid| host.forked(pid, 1));
            host.see(2, "server", 30, 0);
            assert_eq!(host.times.ran()[0].forked_user_ns, 0, "it still runs");
            for pid in 2..5 {
                host.times.change(&Change::exited(0, pid), &"server".into(), over);
            }
            let left = [(1, "server", 100, 90)];
            host.look(MOST, &left);
            let expected: &[u32] = if over { &[1] } else { &[1, 2, 3, 4] };
            assert_eq!(host.looked, expected);
            // By now, the number of the second process is reused.
            host.forked(2, 1);
            host.look(MOST, &left);
            host.look(MOST, &left);
            assert!(host.times.gone.is_empty() && host.times.over.is_empty());
            assert_eq!(host.ran(), [("server".to_owned(), 190, 95, 90, 0)]);
        }
    }

    #[test]
    fn of_many_processes_each_has_its_turn_and_in_the_end_all_are_looked_at() {
        let last = 3 * MOST as u32;
        let all = |own| (1..=last).map(|pid| (pid, "server", own, 0)).collect::<Vec<_>>();
        let mut host = Simulated::default();
        (1..=last).for_each(|pid| host.times.started(pid));
        for look in 1..=3 {
            host.look(MOST, &all(1));
            assert_eq!(host.times.seen.len(), look * MOST);
        }
        host.look(usize::MAX, &all(2));
        assert_eq!(host.user_ns("server"), 2 * u64::from(last));
        // Those that have ended take no turn from those that run.
        host.times.looked_at = 0;
        host.look(1, &[(last, "server", 3, 0)]);
        assert_eq!(host.times.running, BTreeSet::from([last]));
    }

    #[test]
    fn what_is_known_of_processes_that_are_gone_takes_no_more_room_however_many_there_were() {
        let mut host = Simulated::default();
        host.times.see(1, told("make", 0, 0), told("make", 0, 0));
        host.times.running.insert(1);
        let mut waited = 0;
        for build in 0..100 {
            // Each shell is read. One of its compilers is read, and the other one isn't.
            let [parent, seen, unseen] = [10, 11, 12].map(|pid| pid + 3 * build);
            host.forked(parent, 1);
            [seen, unseen].into_iter().for_each(|child| host.forked(child, parent));
            let make = (1, "make", 0, waited);
            host.look(usize::MAX, &[make, (parent, "sh", 1, 0), (seen, "cc1", 5, 0)]);
            [seen, unseen].into_iter().for_each(|child| host.exited(child, "cc1"));
            host.look(usize::MAX, &[make, (parent, "sh", 1, 5 + 7)]);
            host.exited(parent, "sh");
            waited += 1 + 5 + 7;
            host.look(usize::MAX, &[(1, "make", 0, waited)]);
        }
        host.look(usize::MAX, &[(1, "make", 0, waited)]);
        let used = ["cc1", "make", "sh"].map(|name| host.user_ns(name));
        assert_eq!(used, [1200, 0, 100]);
        let times = host.times;
        assert!(times.children.is_empty() && times.forked.is_empty() && times.gone.is_empty());
        assert_eq!((times.seen.len(), times.explained.len()), (1, 1));
    }

    #[test]
    fn what_no_look_has_seen_of_a_command_that_ended_is_shared_among_those_that_were_seen() {
        let whole = told("", 0, 400).children;
        let mut host = Simulated::default();
        host.times.whole(whole, "make", 0);
        assert_eq!(host.ran(), [("make".to_owned(), 400, 200, 0, 0)]);
        host.see(1, "sh", 10, 0);
        host.see(2, "cc1", 30, 0);
        let ran = host.ran().into_iter().map(|(name, user, kernel, ..)| (name, user, kernel));
        assert_eq!(
            ran.collect::<Vec<_>>(),
            [("cc1".to_owned(), 300, 150), ("sh".to_owned(), 100, 50)]
        );
        assert_eq!(host.times.ns(), whole.ns());
        // Processes that no parent waited for aren't in the total.
        host.see(3, "daemon", 900, 0);
        assert_eq!(host.times.ns(), 940 + 470);
    }
}
