//! A workload's memory needs, and its measured window.

use crate::team::{WORDS, word};

/// The memory that a workload needs to behave as intended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The bytes of each node of ordinary memory.
    pub node: u64,
    /// The bytes of each slow node; `None` if the workload needs no slow memory.
    pub slow: Option<u64>,
    /// The least number of ordinary memory nodes.
    pub nodes: u64,
    /// Whether pages must move to slow memory when ordinary memory is full.
    pub demotion: bool,
    /// The number of pages to free at a time when memory is full; `None` lets the kernel decide.
    pub ahead: Option<u64>,
    /// Whether CPUs without work free memory, instead of the CPUs that allocate.
    pub idle_reclaims: bool,
    /// The number of pages that a call unmaps with one flush; `None` lets the kernel decide.
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

/// The measured window of a finished run: the interval to which the workload's figure applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The window's length in nanoseconds, never 0.
    pub nanoseconds: u64,
    /// The work done in the window, as the file's `done` statements count it.
    pub done: u64,
}

impl Window {
    /// Returns the window of a run, from its control words.
    ///
    /// Returns `None` if the run failed or hasn't ended.
    pub fn of(words: &[u64; WORDS]) -> Option<Window> {
        let [begin, end] = [word::BEGIN, word::END].map(|index| words[index]);
        (words[word::FAILED] == 0 && end > begin)
            .then(|| Window { nanoseconds: end - begin, done: words[word::DONE] })
    }
}
