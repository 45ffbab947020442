//! Records which cache lines move between cores, and which code moves them.
//!
//! Recording takes no virtual time. The moves of the measured window add up to the machine's count of `transfers`.

use crate::costs::KernelLock;
use crate::file::Time;
use quell_vm::Mark;
use rustc_hash::FxHashMap;
use std::panic::Location;

/// A cache line that moved between cores.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MovedLine {
    /// A line of shared words, by its number.
    Words(u32),
    /// The lines of a kernel's lock that the manager lacks and the kernel file adds.
    Lock(KernelLock),
}

/// The work that a CPU did when it moved a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// A system call. The text is its name in traces.
    Call(&'static str),
    /// A page fault.
    Fault,
    /// An interrupt handler.
    Interrupt,
    /// The program itself. That includes its control words, the walks of its accesses, its start and its end.
    Program,
}

/// The moves of one line by one piece of code during one kind of work.
#[derive(Clone, Debug)]
pub struct LineMove {
    /// The line that moved.
    pub line: MovedLine,
    /// The code that moved the line. `None` for the walker of page tables.
    pub code: Option<&'static Location<'static>>,
    /// The work that the CPUs did.
    pub role: Role,
    /// The number of different CPUs that moved the line.
    pub cpus: u32,
    /// The number of moves.
    pub count: u64,
    /// The sum of the times until the line arrived, in picoseconds. A load waits for the line, a store doesn't.
    pub time: Time,
}

type Key = (MovedLine, Option<&'static Location<'static>>, Role);

/// CPUs in one word of a set.
const WORD: usize = 64;

#[derive(Clone, Default, Debug)]
struct Tally {
    count: u64,
    time: Time,
    cpus: [u64; 1024 / WORD],
}

/// The moves of a run.
#[derive(Default, Debug)]
pub(crate) struct Moves {
    before: FxHashMap<Key, Tally>,
    rows: FxHashMap<Key, Tally>,
    window: Option<FxHashMap<Key, Tally>>,
}

impl Moves {
    /// Records `count` moves by one CPU.
    pub fn add(&mut self, key: Key, cpu: usize, count: u64, time: Time) {
        let tally = self.rows.entry(key).or_default();
        tally.count += count;
        tally.time += time;
        tally.cpus[cpu / WORD] |= 1 << (cpu % WORD);
    }

    /// Begins or ends the program's measurement.
    pub fn mark(&mut self, mark: Mark) {
        match mark {
            Mark::Begin => merge(&mut self.before, std::mem::take(&mut self.rows)),
            Mark::End => self.window = Some(self.rows.clone()),
        }
    }

    /// Returns the moves of the measured window, or of the whole run without one.
    pub fn sorted(self) -> Vec<LineMove> {
        let rows = self.window.unwrap_or_else(|| {
            let mut all = self.before;
            merge(&mut all, self.rows);
            all
        });
        let row = |((line, code, role), tally): (Key, Tally)| LineMove {
            line,
            code,
            role,
            cpus: tally.cpus.iter().map(|word| word.count_ones()).sum(),
            count: tally.count,
            time: tally.time,
        };
        let mut rows: Vec<_> = rows.into_iter().map(row).collect();
        rows.sort_by_key(|row| (row.line, row.code, row.role));
        rows
    }
}

fn merge(into: &mut FxHashMap<Key, Tally>, from: FxHashMap<Key, Tally>) {
    for (key, tally) in from {
        let sum = into.entry(key).or_default();
        sum.count += tally.count;
        sum.time += tally.time;
        for (word, more) in sum.cpus.iter_mut().zip(tally.cpus) {
            *word |= more;
        }
    }
}
