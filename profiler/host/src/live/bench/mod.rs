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
    /// The name for `--only`.
    pub name: &'static str,
    /// The mechanism that it exercises, `S0` to `S4`.
    pub mechanism: &'static str,
    /// Its operation, in a line.
    pub title: &'static str,
    /// Its share of the total time, relative to the others.
    pub weight: u32,
    /// Whether the calibration or its predictions use it. It then runs in several rounds, in turn with the other
    /// benchmarks of this kind, so that all their rows see the same machine.
    pub in_rounds: bool,
    /// Runs it. The lab keeps its rows, and refusals of single rows.
    pub run: fn(&mut Lab) -> Result<(), Halt>,
}

/// All benchmarks, in the order in which they are listed and reported.
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
