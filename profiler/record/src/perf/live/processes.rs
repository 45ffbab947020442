//! Tracks processes: names of threads, mappings of code, and whether they're recorded.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::perf::counters;
use crate::perf::file::Place;
use crate::perf::sample::{Change, Host, NameTable};
use crate::perf::symbols;

#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) module: Arc<str>,
}

/// The mappings of a process by their start.
type Mappings = Arc<BTreeMap<u64, Mapping>>;

/// A thread, with its name if known, and its end.
#[derive(Debug)]
struct Thread {
    comm: Option<Arc<str>>,
    ended_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Process {
    mappings: Mappings,
    /// The number of the last change of its mapped files.
    generation: u64,
    /// The value of `Processes::missed` up to which its mappings are complete.
    known: u64,
    /// The number of its running threads, and the end of the last one.
    threads: u32,
    ended_ns: Option<u64>,
}

/// A thread or a process that we removed, long after its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal {
    Thread(u32),
    Process(u32),
}

/// The time for which ended threads are kept. Later records of them don't come.
const KEPT_NS: u64 = 2_000_000_000;

#[derive(Debug, Default)]
pub(super) struct Processes {
    threads: FxHashMap<u32, Thread>,
    processes: FxHashMap<u32, Process>,
    /// Ended threads: time, process, thread.
    ended: VecDeque<(u64, u32, u32)>,
    /// The number of changes of mapped files so far.
    changes: u64,
    /// The number of gaps in the records of mappings so far.
    missed: u64,
    /// The recorded processes. `None` if all are recorded.
    wanted: Option<HashSet<u32>>,
    /// The process that we started for the recording.
    command: Option<u32>,
}

/// Markers on a stack: the following addresses are the kernel's, or the program's.
const CONTEXT_KERNEL: u64 = -128i64 as u64;
const CONTEXT_USER: u64 = -512i64 as u64;
const CONTEXT_LOWEST: u64 = -4095i64 as u64;

impl Processes {
    /// Reads all running processes from `/proc`.
    ///
    /// Also returns the changes to write for the recorded processes. These are `wanted` and their descendants, and are
    /// listed in `host`.
    pub(super) fn running(
        wanted: Option<HashSet<u32>>,
        names: &mut NameTable,
        host: &mut Host,
    ) -> (Self, Vec<Change>) {
        let pids = numbers(Path::new("/proc"));
        let mut processes = Self {
            wanted: wanted.map(|wanted| with_descendants(wanted, &pids, host)),
            ..Self::default()
        };
        let mut changes = Vec::new();
        for pid in pids {
            let directory = Path::new("/proc").join(pid.to_string());
            for tid in numbers(&directory.join("task")) {
                let comm = std::fs::read_to_string(directory.join(format!("task/{tid}/comm")));
                let Ok(comm) = comm else {
                    continue;
                };
                let comm = names.get(comm.trim_end_matches('\n'));
                changes.push(Change::Named { time_ns: 0, pid, tid, comm, exec: false });
            }
            let maps = std::fs::read_to_string(directory.join("maps")).unwrap_or_default();
            let mapped = maps.lines().filter_map(|line| mapped(pid, line, names));
            changes.extend(mapped.collect::<Vec<_>>());
        }
        for change in &changes {
            processes.take(change);
        }
        changes.retain(|change| processes.is_wanted(process(change)));
        (processes, changes)
    }

    pub(super) fn is_wanted(&self, pid: u32) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(&pid))
    }

    /// Records the process that was started for the recording.
    pub(super) fn want_command(&mut self, pid: u32) {
        self.command = Some(pid);
        self.wanted.get_or_insert_default().insert(pid);
    }

    /// Returns the recorded processes. `None` if all are recorded.
    pub(super) fn wanted(&self) -> Option<&HashSet<u32>> {
        self.wanted.as_ref()
    }

    /// Returns a number that changes whenever the process's mapped files change.
    pub(super) fn generation(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |of| of.generation)
    }

    pub(super) fn mappings(&self, pid: u32) -> impl Iterator<Item = (u64, &Mapping)> {
        let mappings = self.processes.get(&pid).into_iter();
        mappings.flat_map(|of| of.mappings.iter().map(|(start, mapping)| (*start, mapping)))
    }

    /// Returns the name of a thread. Empty if it isn't known.
    pub(super) fn comm(&self, tid: u32, names: &mut NameTable) -> Arc<str> {
        match self.threads.get(&tid).and_then(|thread| thread.comm.as_ref()) {
            Some(comm) => comm.clone(),
            None if tid == 0 => names.get("swapper"),
            None => names.get(""),
        }
    }

    /// Returns the name of a thread's program: that of the main thread, or the thread's own if that is unknown.
    pub(super) fn program(&self, pid: u32, tid: u32, names: &mut NameTable) -> Arc<str> {
        let comm = self.comm(pid, names);
        if comm.is_empty() {
            return self.comm(tid, names);
        }
        comm
    }

    /// Applies a change. Returns whether it must be written.
    pub(super) fn take(&mut self, change: &Change) -> bool {
        match *change {
            Change::Named { pid, tid, ref comm, exec, .. } => {
                self.begins(pid, tid, Some(comm.clone()));
                if exec {
                    self.process(pid).mappings = Mappings::default();
                    self.mappings_changed(pid);
                }
            }
            Change::Forked { pid, tid, parent, parent_tid, .. } => {
                let comm = self.threads.get(&parent_tid);
                let comm = comm.and_then(|thread| thread.comm.clone());
                if pid != parent {
                    // Another thread may have used the number before.
                    self.threads.remove(&tid);
                    let of_parent = self.processes.get(&parent);
                    let (mappings, known) =
                        of_parent.map(|of| (of.mappings.clone(), of.known)).unwrap_or_default();
                    self.processes.insert(pid, Process { mappings, known, ..Process::default() });
                    self.mappings_changed(pid);
                }
                self.begins(pid, tid, comm);
                if pid != parent
                    && let Some(wanted) = &mut self.wanted
                {
                    // Numbers are reused, also for processes that aren't recorded.
                    match wanted.contains(&parent) {
                        true => _ = wanted.insert(pid),
                        // We read the record of the command's start after we started it.
                        false if self.command == Some(pid) => {}
                        false => _ = wanted.remove(&pid),
                    }
                }
            }
            // Records of a thread may come after that of its end, so we keep it for a while.
            Change::Exited { time_ns, pid, tid } => self.ends(time_ns, pid, tid),
            Change::Mapped { pid, start, bytes, offset, ref module, .. } => {
                let end = start.saturating_add(bytes);
                let mappings = Arc::make_mut(&mut self.process(pid).mappings);
                let before = mappings.range(..end).rev().take_while(|(_, m)| m.end > start);
                let covered: Vec<u64> = before.map(|(begin, _)| *begin).collect();
                for begin in covered {
                    let old = mappings.remove(&begin).expect("it was just found");
                    if begin < start {
                        mappings.insert(begin, Mapping { end: start, ..old.clone() });
                    }
                    if old.end > end {
                        let offset = old.offset + (end - begin);
                        mappings.insert(end, Mapping { offset, ..old });
                    }
                }
                let file = symbols::is_file(module);
                let module = module.clone();
                mappings.insert(start, Mapping { end, offset, module });
                if file {
                    self.mappings_changed(pid);
                }
            }
        }
        self.is_wanted(process(change))
    }

    /// Notes that changes of mappings haven't been recorded until now.
    pub(super) fn missed_mappings(&mut self) {
        self.missed += 1;
    }

    /// Reads the mappings of a process if changes may have been missed.
    pub(super) fn catch_up(&mut self, pid: u32, names: &mut NameTable) {
        let missed = self.missed;
        let process = self.process(pid);
        if std::mem::replace(&mut process.known, missed) == missed {
            return;
        }
        // `/proc` has no mappings of an ended process, so it keeps those that we know.
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
        if let Some(maps) = maps.ok().filter(|maps| !maps.is_empty()) {
            process.mappings = Mappings::default();
            for change in maps.lines().filter_map(|line| mapped(pid, line, names)) {
                self.take(&change);
            }
        }
    }

    /// Notes that a process's mapped files have changed.
    fn mappings_changed(&mut self, pid: u32) {
        self.changes += 1;
        self.process(pid).generation = self.changes;
    }

    fn process(&mut self, pid: u32) -> &mut Process {
        self.processes.entry(pid).or_default()
    }

    /// Adds a thread, or renames it.
    fn begins(&mut self, pid: u32, tid: u32, comm: Option<Arc<str>>) {
        let thread = Thread { comm, ended_ns: None };
        let before = self.threads.insert(tid, thread);
        let process = self.process(pid);
        if before.is_none_or(|before| before.ended_ns.is_some()) {
            process.threads += 1;
        }
        process.ended_ns = None;
    }

    fn ends(&mut self, time_ns: u64, pid: u32, tid: u32) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if thread.ended_ns.replace(time_ns).is_some() {
            return;
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads = process.threads.saturating_sub(1);
            process.ended_ns = (process.threads == 0).then_some(time_ns);
        }
        self.ended.push_back((time_ns, pid, tid));
    }

    pub(super) fn has_ended(&self, pid: u32) -> bool {
        self.ended_ns(pid).is_some()
    }

    pub(super) fn ended_ns(&self, pid: u32) -> Option<u64> {
        self.processes.get(&pid)?.ended_ns
    }

    /// Removes threads and processes that ended so long ago that no more records come. Passes each to `forgotten`.
    pub(super) fn forget(&mut self, now_ns: u64, mut forgotten: impl FnMut(Removal)) {
        while let Some(&(time_ns, pid, tid)) = self.ended.front()
            && time_ns.saturating_add(KEPT_NS) <= now_ns
        {
            self.ended.pop_front();
            // The number may be in use again.
            let ended = Some(time_ns);
            if self.threads.get(&tid).is_some_and(|of| of.ended_ns == ended) {
                self.threads.remove(&tid);
                forgotten(Removal::Thread(tid));
            }
            if self.processes.get(&pid).is_some_and(|of| of.ended_ns == ended) {
                self.processes.remove(&pid);
                if let Some(wanted) = &mut self.wanted {
                    wanted.remove(&pid);
                }
                forgotten(Removal::Process(pid));
            }
        }
    }

    /// Appends the places on a stack, innermost first, from the kernel's `chain`. If `user` is given, it replaces the
    /// user part of `chain`.
    pub(super) fn places(
        &self,
        pid: u32,
        chain: &[u64],
        user: Option<&[(u64, bool)]>,
        places: &mut Vec<Place>,
    ) {
        let (mut kernel, mut call) = (false, false);
        for &address in chain {
            if address >= CONTEXT_LOWEST {
                if let Some(user) = user.filter(|_| address == CONTEXT_USER) {
                    let user = user.iter();
                    places
                        .extend(user.map(|&(address, call)| self.place(pid, address, false, call)));
                    break;
                }
                (kernel, call) = (address == CONTEXT_KERNEL, false);
                if !matches!(address, CONTEXT_KERNEL | CONTEXT_USER) {
                    // These are addresses of a guest, which we can't resolve here.
                    break;
                }
                continue;
            }
            places.push(self.place(pid, address, kernel, call));
            call = true;
        }
    }

    /// Returns the places of addresses on a program's stack, innermost first.
    pub(super) fn user_places(&self, pid: u32, addresses: impl Iterator<Item = u64>) -> Vec<Place> {
        let places = addresses.enumerate();
        places.map(|(at, address)| self.place(pid, address, false, at > 0)).collect()
    }

    /// Looks up the mapping at an address.
    fn place(&self, pid: u32, address: u64, kernel: bool, call: bool) -> Place {
        let found = match kernel {
            true => None,
            false => {
                self.processes.get(&pid).and_then(|of| of.mappings.range(..=address).next_back())
            }
        };
        let found = found.filter(|(_, mapping)| address < mapping.end);
        let module = found.map(|(start, m)| (m.module.clone(), m.offset + (address - start)));
        Place { address, kernel, call, pid, module }
    }
}

pub(super) fn process(change: &Change) -> u32 {
    match *change {
        Change::Named { pid, .. }
        | Change::Forked { pid, .. }
        | Change::Exited { pid, .. }
        | Change::Mapped { pid, .. } => pid,
    }
}

/// Returns these processes and their running descendants. Lists them in `host`, with the names of the descendants.
fn with_descendants(mut wanted: HashSet<u32>, running: &[u32], host: &mut Host) -> HashSet<u32> {
    /// The largest number of descendants to name. The rest is only counted.
    const NAMED: usize = 8;
    let found = descendants(&wanted, running);
    wanted.extend(found.iter().map(|(pid, _)| pid));
    if !found.is_empty() {
        let named = found.iter().take(NAMED).map(|(pid, of)| format!("{} {pid}", of.comm));
        let named: Vec<_> = named.collect();
        host.scope += &format!(" and its descendants: {}", named.join(", "));
        if let more @ 1.. = found.len().saturating_sub(NAMED) {
            host.scope += &format!(", and {more} more");
        }
    }
    host.pids = wanted.iter().copied().collect();
    host.pids.sort_unstable();
    wanted
}

/// Returns the descendants of these processes, each with the kernel's account of it.
pub(super) fn descendants(of: &HashSet<u32>, running: &[u32]) -> Vec<(u32, counters::Process)> {
    let known = running.iter().filter_map(|&pid| Some((pid, counters::process(pid)?)));
    let mut others: Vec<_> = known.filter(|(pid, _)| !of.contains(pid)).collect();
    let mut parents = of.clone();
    let mut found = Vec::new();
    while !parents.is_empty() {
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, process)| parents.contains(&process.parent));
        others = rest;
        parents = children.iter().map(|(pid, _)| *pid).collect();
        found.extend(children);
    }
    found
}

/// Lists the entries of a directory that are numbers.
pub(crate) fn numbers(directory: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Parses a mapping of code from a line of `/proc/PID/maps`.
fn mapped(pid: u32, line: &str, names: &mut NameTable) -> Option<Change> {
    let hex = |digits| u64::from_str_radix(digits, 16).ok();
    // The words are range, rights, offset, device, and inode. The name follows after any number of blanks.
    let mut words = line.splitn(6, ' ');
    let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
    let name = words.nth(2).unwrap_or_default().trim();
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let module = if name.is_empty() { "//anon" } else { name };
    rights.contains('x').then_some(())?;
    let bytes = end.checked_sub(start)?;
    let module = names.get(module.strip_suffix(" (deleted)").unwrap_or(module));
    Some(Change::Mapped { time_ns: 0, pid, start, bytes, offset: hex(offset)?, module })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_that_were_missed_are_read_when_they_are_needed() {
        let (names, host) = (&mut NameTable::default(), &mut Host::default());
        let (mut processes, _) = Processes::running(None, names, host);
        let pid = std::process::id();
        let here = map as *const () as u64;
        let module = |processes: &Processes| {
            let place = processes.place(pid, here, false, false);
            place.module.map(|(module, _)| module)
        };
        let known = module(&processes);
        assert!(known.is_some());
        processes.process(pid).mappings = Mappings::default();
        processes.catch_up(pid, names);
        assert_eq!(module(&processes), None, "nothing was missed");
        processes.missed_mappings();
        processes.catch_up(pid, names);
        assert_eq!(module(&processes), known);
    }

    fn map(pid: u32, start: u64, bytes: u64, module: &str) -> Change {
        Change::Mapped { time_ns: 0, pid, start, bytes, offset: 0, module: module.into() }
    }

    fn module(processes: &Processes, pid: u32, address: u64) -> Option<(String, u64)> {
        let module = processes.place(pid, address, false, false).module;
        module.map(|(name, offset)| (name.to_string(), offset))
    }

    #[test]
    fn a_mapping_replaces_what_it_covers_and_leaves_the_rest() {
        let mut processes = Processes::default();
        processes.take(&map(1, 0x1000, 0x3000, "a"));
        processes.take(&map(1, 0x2000, 0x1000, "b"));
        assert_eq!(module(&processes, 1, 0x1fff), Some(("a".to_owned(), 0xfff)));
        assert_eq!(module(&processes, 1, 0x2004), Some(("b".to_owned(), 4)));
        assert_eq!(module(&processes, 1, 0x3004), Some(("a".to_owned(), 0x2004)));
        assert_eq!(module(&processes, 1, 0x4000), None);
        assert_eq!(module(&processes, 2, 0x1000), None);
    }

    #[test]
    fn children_inherit_mappings_and_being_wanted() {
        let mut processes = Processes { wanted: Some(HashSet::from([1])), ..Processes::default() };
        assert!(processes.take(&map(1, 0x1000, 0x1000, "a")));
        assert!(processes.take(&Change::forked(0, 2, 1)));
        assert!(!processes.take(&Change::forked(0, 4, 3)));
        processes.take(&map(1, 0x1000, 0x1000, "new"));
        assert_eq!(module(&processes, 2, 0x1000).unwrap().0, "a");
        assert!(!processes.take(&Change::forked(0, 2, 3)), "the number was used again");
        processes.want_command(5);
        assert!(processes.take(&Change::forked(0, 5, 3)));
    }

    #[test]
    fn a_program_has_the_name_of_its_main_thread() {
        let mut names = NameTable::default();
        let mut processes = Processes::default();
        for (tid, name) in [(1, "server"), (2, "worker")] {
            processes.take(&Change::Named {
                time_ns: 0,
                pid: 1,
                tid,
                comm: name.into(),
                exec: false,
            });
        }
        assert_eq!(&*processes.program(1, 2, &mut names), "server");
        assert_eq!(&*processes.program(3, 2, &mut names), "worker");
    }

    #[test]
    fn what_has_ended_is_forgotten_after_a_while_unless_its_number_is_used_again() {
        let mut names = NameTable::default();
        let mut processes = Processes { wanted: Some(HashSet::from([1])), ..Processes::default() };
        let thread = |tid| Change::Forked { time_ns: 0, pid: 2, tid, parent: 2, parent_tid: 2 };
        let exited = |time_ns, pid, tid| Change::Exited { time_ns, pid, tid };
        for change in [
            Change::named(0, 1, "server", false),
            map(1, 0x1000, 0x1000, "a"),
            Change::forked(0, 2, 1),
            thread(3),
            Change::forked(0, 4, 1),
            // The first thread of a process may end before the others.
            exited(10, 2, 2),
            exited(20, 4, 4),
        ] {
            processes.take(&change);
        }
        let forget = |processes: &mut Processes, now_ns| {
            let mut all = Vec::new();
            processes.forget(now_ns, |forgotten| all.push(forgotten));
            all
        };
        assert_eq!(forget(&mut processes, KEPT_NS + 9), []);
        assert_eq!(&*processes.comm(4, &mut names), "server");
        let forgotten = forget(&mut processes, KEPT_NS + 20);
        let (thread, process) = (Removal::Thread, Removal::Process);
        assert_eq!(forgotten, [thread(2), thread(4), process(4)]);
        assert_eq!(&*processes.comm(4, &mut names), "");
        assert!(!processes.is_wanted(4) && processes.is_wanted(2));
        assert_eq!(module(&processes, 2, 0x1000).unwrap().0, "a");
        assert_eq!(module(&processes, 4, 0x1000), None);
        // The last thread ends, and its number and that of its process are reused at once.
        processes.take(&exited(30, 2, 3));
        processes.take(&Change::forked(0, 3, 1));
        processes.take(&Change::forked(0, 2, 1));
        assert_eq!(forget(&mut processes, u64::MAX), []);
        assert_eq!(module(&processes, 2, 0x1000).unwrap().0, "a");
        assert!(processes.is_wanted(2) && processes.is_wanted(3));
    }

    #[test]
    fn parts_of_a_stack_begin_with_a_place_and_go_on_with_calls() {
        let mut places = Vec::new();
        let chain = [CONTEXT_KERNEL, 1, 2, CONTEXT_USER, 3, 4];
        Processes::default().places(7, &chain, None, &mut places);
        let told: Vec<_> = places.iter().map(|p| (p.address, p.kernel, p.call)).collect();
        assert_eq!(told, [(1, true, false), (2, true, true), (3, false, false), (4, false, true)]);
    }

    #[test]
    fn lines_of_maps_are_read() {
        let mut names = NameTable::default();
        let line = "7f00-8000 r-xp 00001000 fe:00 1234       /usr/lib/with space.so";
        let expected = Change::Mapped {
            time_ns: 0,
            pid: 1,
            start: 0x7f00,
            bytes: 0x100,
            offset: 0x1000,
            module: "/usr/lib/with space.so".into(),
        };
        assert_eq!(mapped(1, line, &mut names), Some(expected));
        let line = "7f00-8000 rwxp 00000000 00:00 0 ";
        assert!(
            matches!(mapped(1, line, &mut names), Some(Change::Mapped { module, .. }) if &*module == "//anon")
        );
        assert_eq!(mapped(1, "7f00-8000 rw-p 00000000 00:00 0 [heap]", &mut names), None);
        assert_eq!(mapped(1, "nonsense", &mut names), None);
    }
}
