//! The layout of stored values and their checksums.

use core::hash::BuildHasher;
use rustc_hash::FxBuildHasher;

pub const PAGE: u64 = 4096;
/// Pages that all CPUs write, anonymous.
pub const SHARED: u64 = 96;
/// Pages that all CPUs write, of a file.
pub const FILE: u64 = 32;
/// Pages that all CPUs write and that may be one large page.
pub const LARGE: u64 = 512;
/// Pages of one chunk of a CPU's own region.
pub const CHUNK: u64 = 8;
/// Chunks of a CPU's own region, in one of two halves.
pub const CHUNKS: u64 = 16;
/// Processes of each CPU's own.
pub const GUESTS: usize = 3;
/// Pages of the file that each CPU truncates.
pub const TAIL: u64 = 6;
/// The most CPUs: each has a cache line of every shared page.
pub const CPUS: usize = 64;
/// The address of the anonymous shared pages.
pub const SHARED_AT: u64 = 0x20_0000_0000;
pub const LARGE_AT: u64 = 0x21_0000_0000;
pub const FILE_AT: u64 = 0x22_0000_0000;
/// The same file, read-only.
pub const READ_AT: u64 = 0x23_0000_0000;
pub const OWN_AT: u64 = 0x24_0000_0000;
/// The distance between CPUs' own regions, and of their tails.
pub const OWN_STRIDE: u64 = 1 << 24;
/// The distance between the halves of one.
pub const HALF: u64 = 1 << 23;
pub const TAIL_AT: u64 = 0x25_0000_0000;

/// Kinds of memory, part of every checksum.
#[derive(Clone, Copy)]
pub enum Kind {
    Shared,
    Large,
    File,
    Own,
    Guest,
    Tail,
    Child,
}

/// Returns the value of the `count`th store to a place: the count above its checksum.
pub fn value(kind: Kind, cpu: usize, page: u64, count: u64) -> u64 {
    let checksum = FxBuildHasher.hash_one((kind as u8, cpu, page, count));
    count << 24 | checksum & 0xff_ffff
}

/// Returns the place's number of writes when this value was stored. Returns `None` if no such store was made. Memory
/// that was never written is zero.
pub fn count_of(kind: Kind, cpu: usize, page: u64, held: u64) -> Option<u64> {
    let count = held >> 24;
    (held == 0 || value(kind, cpu, page, count) == held).then_some(count)
}

/// Returns an address for a non-maskable interrupt to read, and the value's check. `choice` is any number.
///
/// The interrupt handler doesn't know its CPU's current process. So in guests and in child processes, too, the word at
/// that address contains a value that its CPU stored in that process.
pub fn probe(choice: u64, cpus: usize) -> (u64, impl Fn(u64) -> bool) {
    let (page, cpu) = (choice % SHARED, (choice >> 32) as usize % cpus);
    let address = SHARED_AT + page * PAGE + 64 * cpu as u64;
    (address, move |held| {
        [Kind::Shared, Kind::Guest, Kind::Child]
            .into_iter()
            .any(|kind| count_of(kind, cpu, page, held).is_some())
    })
}
