//! The benchmarks. Each module begins with its operation and its limits.

mod discard;
mod fault;
mod file_write;
mod migrate;
mod page_out;
mod ping_pong;
mod stream;
mod units;

pub use discard::one_page_key;

use super::lab::{Halt, Lab};

/// One benchmark.
pub struct Benchmark {
    /// Its name for `--only`.
    pub name: &'static str,
    /// Which of the mechanisms `S0`..`S4` it exercises.
    pub mechanism: &'static str,
    /// Its operation, in a line.
    pub title: &'static str,
    /// Its part of the total time, against the others.
    pub weight: u32,
    /// Whether the calibration or its predictions rest on it, so that its rows must have seen the same machine as those
    /// of the others: it then runs in several rounds, by turns with them.
    pub in_rounds: bool,
    /// Runs it; rows and refusals of single rows are left in the lab.
    pub run: fn(&mut Lab) -> Result<(), Halt>,
}

/// All of them, in the order they are listed and reported.
pub const ALL: [Benchmark; 7] = [
    Benchmark {
        name: "discard",
        mechanism: "S4",
        title: "touch pages and give them back with MADV_DONTNEED, with 0..n threads spinning on other CPUs",
        weight: 6,
        in_rounds: true,
        run: discard::run,
    },
    Benchmark {
        name: "filewrite",
        mechanism: "S4",
        title: "random 16 KiB writes through a shared file mapping, synced after every 100",
        weight: 4,
        in_rounds: false,
        run: file_write::run,
    },
    Benchmark {
        name: "pageout",
        mechanism: "S0",
        title: "page out 1 MiB with MADV_PAGEOUT and read it back, on a zram swap device made for it",
        weight: 6,
        in_rounds: true,
        run: page_out::run,
    },
    Benchmark {
        name: "migrate",
        mechanism: "S0",
        title: "move 1 MiB between two NUMA nodes",
        weight: 2,
        in_rounds: false,
        run: migrate::run,
    },
    Benchmark {
        name: "pingpong",
        mechanism: "S2",
        title: "two processes on one CPU wake each other through eventfds, touching 0 or 512 pages each turn",
        weight: 3,
        in_rounds: true,
        run: ping_pong::run,
    },
    Benchmark {
        name: "fault",
        mechanism: "S1",
        title: "demand faults by page size: 4 KiB, transparent 2 MiB, hugetlb 1 GiB",
        weight: 4,
        in_rounds: false,
        run: fault::run,
    },
    Benchmark {
        name: "stream",
        mechanism: "S3",
        title: "readers stream over a mapped file twice as large as the memory cgroup they are in",
        weight: 4,
        in_rounds: false,
        run: stream::run,
    },
];
