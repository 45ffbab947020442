//! A workload's memory needs, and its measured window.

use crate::team::{WORDS, word};

/// The memory that a workload needs to behave as intended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of each node of ordinary memory.
    pub node: u64,
    /// Bytes of each slow node; `None` if the workload needs no slow memory.
    pub slow: Option<u64>,
    /// The least number of ordinary memory nodes.
    pub nodes: u64,
    /// Whether pages must move to slow memory when ordinary memory is full.
    pub demotion: bool,
    /// Pages to free at a time when memory is full; `None` leaves it to the kernel.
    pub ahead: Option<u64>,
    /// Whether CPUs without work free memory, instead of those that allocate.
    pub idle_reclaims: bool,
    /// Pages that a call unmaps with one flush; `None` leaves it to the kernel.
    pub together: Option<u64>,
}

impl Memory {
    /// Returns the memory for touching `bytes` in all, with room for tables and per-CPU caches.
    pub(crate) const fn roomy(bytes: u64, cpus: u64) -> Memory {
        Memory {
            node: bytes + bytes / 64 + (16 << 20) + cpus * (1 << 20),
            slow: None,
            nodes: 1,
            demotion: false,
            ahead: None,
            idle_reclaims: false,
            together: None,
        }
    }
}

/// The measured window of a finished run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its length in nanoseconds, never 0.
    pub nanoseconds: u64,
    /// The work done in it, as counted by the file's `done` statements.
    pub done: u64,
}

impl Window {
    /// Returns the window in a run's control words; `None` if the run failed or hasn't ended.
    pub fn of(words: &[u64; WORDS]) -> Option<Window> {
        let [begin, end] = [word::BEGIN, word::END].map(|index| words[index]);
        (words[word::FAILED] == 0 && end > begin).then(|| Window {
            nanoseconds: end - begin,
            done: words[word::DONE],
        })
    }
}
