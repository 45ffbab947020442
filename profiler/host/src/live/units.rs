//! Collects the costs of single steps in this kernel, from rows that measure one each.
//!
//! We make the machine file from these and from the two rows of one page discarded. Each figure comes from a row that
//! shows it almost alone. No predicted row is among them.

use super::report::{Benchmark, Units};

/// The row of a system call that does nothing.
pub const CALL: &str = "unit/call";
/// The row of a discard that finds nothing.
pub const NOTHING: &str = "unit/discard_nothing";
/// The row of a first touch: a fault, a page, its zeroing.
pub const FAULT: &str = "unit/fault";
/// The row of pages that one call discards.
pub const DISCARD: &str = "unit/discard";
/// The row of pages zeroed one after the other.
pub const ZERO: &str = "unit/zero";
/// The row of pages zeroed from the last to the first.
pub const ZERO_BACKWARDS: &str = "unit/zero_backwards";
/// The row of pages written to a zram device.
pub const COMPRESS: &str = "unit/compress";
/// The row of pages read from a zram device.
pub const DECOMPRESS: &str = "unit/decompress";

/// The row of zero pages paged out and touched again: swapping without compression.
pub const SWAP: &str = "unit/swap";
/// The row of a round trip between two threads: two switches within an address space.
pub const THREADS: &str = "threads/0pages";

/// The keys of all these rows. They belong to the benchmarks `discard`, `pageout` and `pingpong`.
#[cfg(test)]
pub const KEYS: [&str; 10] =
    [CALL, NOTHING, FAULT, DISCARD, ZERO, ZERO_BACKWARDS, COMPRESS, DECOMPRESS, SWAP, THREADS];

impl Units {
    /// Finds the costs that were measured.
    pub fn find(benchmarks: &[Benchmark]) -> Units {
        let ns = |key: &str| {
            let mut rows = benchmarks.iter().flat_map(|benchmark| &benchmark.rows);
            rows.find(|row| row.key == key).map(|row| row.undisturbed())
        };
        Units {
            call_ns: ns(CALL),
            discard_nothing_ns: ns(NOTHING),
            fault_ns: ns(FAULT),
            discard_ns: ns(DISCARD),
            zero_ns: ns(ZERO),
            zero_backwards_ns: ns(ZERO_BACKWARDS),
            compress_ns: ns(COMPRESS),
            decompress_ns: ns(DECOMPRESS),
            swap_ns: ns(SWAP),
            switch_ns: ns(THREADS).map(|round_trip| round_trip / 2.0),
        }
    }
}
