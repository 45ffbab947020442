//! Profiles cache lines: which lines moved between cores, how often, and by which code.
//!
//! Lines form one group if the code that moves each of them most often belongs to the same type. For example, the
//! inboxes of all CPUs are a group. The groups' transfers add up to the machine's own count.

use std::collections::BTreeMap;
use std::panic::Location;

use include_dir::{Dir, include_dir};
use quell_clock::{KernelLock, LineMove, MovedLine, Role};
use serde::Serialize;

use crate::trial::Outcome;

/// The sources of code that moves lines: a location in them has a line, but no function.
static SOURCES: [(&str, Dir<'_>); 3] = [
    ("engine/quell/src", include_dir!("$CARGO_MANIFEST_DIR/sources/quell")),
    ("testbed/vm/src", include_dir!("$CARGO_MANIFEST_DIR/sources/vm")),
    ("model/clock/src", include_dir!("$CARGO_MANIFEST_DIR/sources/clock")),
];

/// The profile of cache lines in a run's measured window.
#[derive(Serialize)]
pub struct LineProfile {
    /// The name that the workload gives to one operation.
    pub operation: &'static str,
    /// The number of operations, or 0 if it's unknown.
    pub operations: u64,
    /// The number of transfers of lines between cores.
    pub transfers: u64,
    /// The group with the most transfers is first.
    pub groups: Vec<LineGroup>,
}

/// A group of lines that the code of one type moves most often.
#[derive(Serialize)]
pub struct LineGroup {
    pub lines: usize,
    pub transfers: u64,
    pub per_operation: Option<f64>,
    /// The average time until a line arrived in nanoseconds, queues included.
    pub ns_each: f64,
    /// The code that moved the lines, the busiest first.
    pub movers: Vec<LineMover>,
}

/// A piece of code that moved lines.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct LineMover {
    /// The name of the function, after its type, or of the lock.
    pub name: String,
    /// The file and line of the code; empty for hardware.
    pub place: String,
    /// The work that the CPUs did: a call, a fault, an interrupt or the program.
    pub role: String,
    /// The most CPUs that moved one line of the group in this way.
    pub cpus: u32,
    pub transfers: u64,
}

impl LineMover {
    /// Returns the type of the function, or the whole name without one.
    fn owner(&self) -> &str {
        self.name.split("::").next().unwrap_or_default()
    }
}

impl LineGroup {
    /// Returns each function and kind of work once, with transfers and most CPUs, busiest first.
    pub fn hands(&self) -> Vec<(String, u64, u32)> {
        let mut hands: Vec<(String, u64, u32)> = Vec::new();
        for mover in &self.movers {
            let name = format!("{}, {}", mover.name, mover.role);
            match hands.iter_mut().find(|hand| hand.0 == name) {
                Some(hand) => {
                    hand.1 += mover.transfers;
                    hand.2 = hand.2.max(mover.cpus);
                }
                None => hands.push((name, mover.transfers, mover.cpus)),
            }
        }
        hands.sort_by_key(|hand| std::cmp::Reverse(hand.1));
        hands
    }
}

/// Returns the name of the function around a location, after its type; empty for an unknown file.
fn function(code: &Location<'_>) -> String {
    let file = SOURCES.iter().find_map(|(folder, sources)| {
        let path = code.file().strip_prefix(folder)?.strip_prefix('/')?;
        sources.get_file(path)?.contents_utf8()
    });
    let above = |begins: &dyn Fn(&str) -> Option<String>| {
        let lines: Vec<_> = file?.lines().take(code.line() as usize).collect();
        lines.iter().rev().find_map(|line| begins(line))
    };
    let word = |text: &str| -> String {
        let inside = |letter: &char| letter.is_alphanumeric() || *letter == '_';
        text.chars().take_while(inside).collect()
    };
    let function = above(&|line| {
        let (before, name) = line.split_once("fn ")?;
        let declared = before
            .split_whitespace()
            .all(|word| matches!(word, "const" | "unsafe") || word.starts_with("pub"));
        declared.then(|| word(name))
    });
    let owner = above(&|line| {
        let text = line.strip_prefix("impl").or_else(|| line.strip_prefix("unsafe impl"))?;
        let text = text.split_once(" for ").map_or(text, |(_, of)| of);
        // Without the parameters of the implementation.
        let text = match text.starts_with('<') {
            true => text.split_once("> ")?.1,
            false => text.trim_start(),
        };
        Some(word(text))
    });
    match (owner, function) {
        (Some(owner), Some(function)) => format!("{owner}::{function}"),
        (None, Some(function)) => function,
        (_, None) => String::new(),
    }
}

fn mover(row: &LineMove) -> LineMover {
    let name = match (row.line, row.code) {
        (MovedLine::Lock(KernelLock::Lists(node)), _) => {
            format!("lock of the lists of pages of node {node}")
        }
        (MovedLine::Lock(KernelLock::Zone(node)), _) => {
            format!("lock of the allocator of node {node}")
        }
        (MovedLine::Lock(KernelLock::File(file)), _) => {
            format!("lock of the page cache of file {file}")
        }
        (MovedLine::Words(_), Some(code)) => function(code),
        (MovedLine::Words(_), None) => "walker of page tables".to_owned(),
    };
    let role = match row.role {
        Role::Call(call) => call,
        Role::Fault => "fault",
        Role::Interrupt => "interrupt",
        Role::Program => "program",
    };
    LineMover {
        name,
        place: row.code.map_or_else(String::new, |code| format!("{}:{}", code.file(), code.line())),
        role: role.to_owned(),
        cpus: row.cpus,
        transfers: row.count,
    }
}

/// Adds a mover to those with the same code and role.
fn add(movers: &mut Vec<LineMover>, new: LineMover) {
    let same = |known: &&mut LineMover| known.place == new.place && known.role == new.role;
    match movers.iter_mut().find(same) {
        Some(known) => {
            known.transfers += new.transfers;
            known.cpus = known.cpus.max(new.cpus);
        }
        None => movers.push(new),
    }
}

impl LineProfile {
    /// Builds a run's profile, or returns `None` if the run didn't record its lines.
    pub fn of(operation: &'static str, outcome: &Outcome) -> Option<LineProfile> {
        let mut lines: BTreeMap<MovedLine, (u64, Vec<LineMover>)> = BTreeMap::new();
        for row in outcome.run.moves.as_ref()? {
            let (time, movers) = lines.entry(row.line).or_default();
            *time += row.time;
            add(movers, mover(row));
        }
        let mut groups: BTreeMap<String, (usize, u64, Vec<LineMover>)> = BTreeMap::new();
        for (time, movers) in lines.into_values() {
            // A lock's releases are all in one place, so only the code that took it names it.
            let busiest = movers
                .iter()
                .max_by_key(|mover| (!mover.name.ends_with("::drop"), mover.transfers));
            let key = busiest.map_or("", |mover| mover.owner()).to_owned();
            let group = groups.entry(key).or_default();
            group.0 += 1;
            group.1 += time;
            movers.into_iter().for_each(|mover| add(&mut group.2, mover));
        }
        let operations = outcome.operations;
        let group = |(lines, time, mut movers): (usize, u64, Vec<LineMover>)| {
            movers.sort_by_key(|mover| std::cmp::Reverse(mover.transfers));
            let transfers: u64 = movers.iter().map(|mover| mover.transfers).sum();
            LineGroup {
                lines,
                transfers,
                per_operation: (operations > 0).then(|| transfers as f64 / operations as f64),
                ns_each: time as f64 / 1e3 / transfers as f64,
                movers,
            }
        };
        let mut groups: Vec<_> = groups.into_values().map(group).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.transfers));
        Some(LineProfile {
            operation,
            operations,
            transfers: groups.iter().map(|group| group.transfers).sum(),
            groups,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::Job;
    use crate::run::outcomes;
    use crate::workloads::known;
    use quell::Policy;
    use quell_clock::built_in;
    use quell_clock::file::built_in_kernel;
    use quell_workloads::Workload;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn run(workload: &str, parameter: &str, cpus: usize, lines: bool) -> (Workload, Outcome) {
        // A Linux, whose locks the profile names too.
        let linux = built_in_kernel("linux-6.18").unwrap();
        let machine = built_in("haswell-server").unwrap().with_kernel(&linux);
        let workload = known(workload, [parameter]);
        let job = Job { lines, ..Job::new(Arc::new(machine), workload, Policy::ALL, cpus) };
        let mut outcomes = outcomes(&job, 1, &AtomicBool::new(false), || ()).unwrap();
        (workload, outcomes.remove(0).unwrap())
    }

    fn profile((workload, outcome): &(Workload, Outcome)) -> LineProfile {
        LineProfile::of(workload.operation(), outcome).unwrap()
    }

    #[test]
    fn a_profile_adds_up_to_the_machines_own_count_and_changes_nothing() {
        for (workload, parameter) in [("crowd", "iterations=40"), ("fileio", "duration=1ms")] {
            let run = |lines| run(workload, parameter, 8, lines);
            let (without, with) = (run(false), run(true));
            assert_eq!(without.1.machine, with.1.machine, "{workload}");
            assert!(LineProfile::of("", &without.1).is_none());
            let profile = profile(&with);
            assert!(profile.transfers > 0, "{workload}");
            assert_eq!(profile.transfers, with.1.machine.transfers, "{workload}");
            for group in &profile.groups {
                let sum: u64 = group.movers.iter().map(|mover| mover.transfers).sum();
                assert_eq!(group.transfers, sum);
                for mover in &group.movers {
                    assert!(!mover.name.is_empty(), "{workload}: {}", mover.place);
                }
            }
            let names = |name: &str| {
                let mut movers = profile.groups.iter().flat_map(|group| &group.movers);
                movers.any(|mover| mover.name.starts_with(name))
            };
            assert_eq!(names("lock of the lists of pages of node 0"), workload == "crowd");
            assert!(names("walker of page tables"), "{workload}");
        }
    }

    /// If the engine changes this, change `model/README.md` too.
    #[test]
    fn a_profile_names_what_moves_most_in_a_crowd() {
        for (cpus, busiest) in [(8, "Inbox::"), (72, "FrameInfo::lock_table, discard")] {
            let profile = profile(&run("crowd", "iterations=10", cpus, true));
            assert_eq!(profile.operations, 10 * cpus as u64);
            let hands = profile.groups[0].hands();
            assert!(hands[0].0.starts_with(busiest), "{cpus} CPUs: {hands:?}");
            // Only a CPU itself serves its inbox.
            let serves = |mover: &&LineMover| mover.name == "Inbox::serve";
            let movers = profile.groups.iter().flat_map(|group| &group.movers);
            let by: Vec<_> = movers.filter(serves).collect();
            assert!(!by.is_empty() && by.iter().all(|mover| mover.cpus == 1));
        }
    }
}
