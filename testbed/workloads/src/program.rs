//! A workload's need of memory, and its measured window.

use crate::team::{WORDS, word};

/// The memory that a workload needs to behave as it is meant to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// Bytes of each node of ordinary memory.
    pub node: u64,
    /// Bytes of each slow node; `None` if slow memory plays no part.
    pub slow: Option<u64>,
    /// How many nodes of ordinary memory there must be at least.
    pub nodes: u64,
    /// Whether pages must move to slow memory when ordinary memory is full.
    pub demotion: bool,
    /// How many pages are to be freed at a time when memory is full; `None` leaves it to the kernel.
    pub ahead: Option<u64>,
    /// Whether CPUs without work free memory, instead of those that allocate.
    pub idle_reclaims: bool,
    /// How many pages a call takes out behind one flush; `None` leaves it to the kernel.
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
    /// The work done in it, as the file's `done` statements count it.
    pub done: u64,
}

impl Window {
    /// The window that a run left in its control words; `None` if the run failed or has not ended.
    pub fn of(words: &[u64; WORDS]) -> Option<Window> {
        let [begin, end] = [word::BEGIN, word::END].map(|index| words[index]);
        (words[word::FAILED] == 0 && end > begin).then(|| Window {
            nanoseconds: end - begin,
            done: words[word::DONE],
        })
    }
}
