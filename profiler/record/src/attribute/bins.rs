//! Sorts times into bins, each ten times as wide as the one before.

/// Bounds between the bins, in nanoseconds: from 10 us to 10 s.
pub const BINS: [u64; 7] =
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000];

/// Returns the index of the first bound above a time. Without one, returns `BINS.len()`.
pub fn bin(ns: u64) -> usize {
    BINS.iter().position(|&bound| ns < bound).unwrap_or(BINS.len())
}

/// Counts by bin.
pub type Bins = [u64; BINS.len() + 1];

/// Sums the bins up to and including the one that ends at `BINS[last]`.
pub fn within(bins: &Bins, last: usize) -> u64 {
    bins.iter().take(last + 1).sum()
}
