//! The benchmarks. Each module begins with its operation and its limits.

mod discard;
mod page_out;
mod ping_pong;
pub(super) mod units;

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
    /// Runs it. The lab keeps its rows, and refusals of single rows.
    pub run: fn(&mut Lab) -> Result<(), Halt>,
}

/// All benchmarks, in the order in which they are listed and reported.
pub const ALL: [Benchmark; 3] = [
    Benchmark {
        name: "discard",
        mechanism: "S4",
        title: "touch pages and give them back with MADV_DONTNEED, with 0..n threads spinning on other CPUs",
        weight: 6,
        run: discard::run,
    },
    Benchmark {
        name: "pageout",
        mechanism: "S0",
        title: "page out 1 MiB with MADV_PAGEOUT and read it back, on a zram swap device made for it",
        weight: 6,
        run: page_out::run,
    },
    Benchmark {
        name: "pingpong",
        mechanism: "S2",
        title: "two processes on one CPU wake each other through eventfds, touching 0 or 512 pages each turn",
        weight: 3,
        run: ping_pong::run,
    },
];
