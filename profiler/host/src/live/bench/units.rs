//! Measures the steps of the other benchmarks, each almost alone. For example: a call, a fault, zeroing, compressing.
//!
//! Each row repeats one step many times, so that the rest of its time is small. `unit/zero` clears pages as this
//! architecture's kernel does, in memory too large for any cache, once forwards and once backwards. `unit/compress`
//! and `unit/decompress` write pages to a zram device and read them, past the page cache. The pages have the same
//! content as those of `pageout`.
//!
//! Not shown: the cost of a step whose code and data were displaced from the caches by others.

use std::io;

use rustix::mm::Advice;

use super::super::guards::Zram;
use super::super::lab::{Halt, Lab, RowSpec};
use super::super::report::{Benchmark, Units};
use crate::memory::{Mapping, page_size};
use crate::process::null_call;

pub const CALL: &str = "unit/call";
pub const NOTHING: &str = "unit/discard_nothing";
pub const FAULT: &str = "unit/fault";
pub const DISCARD: &str = "unit/discard";
pub const ZERO: &str = "unit/zero";
pub const ZERO_BACKWARDS: &str = "unit/zero_backwards";
pub const COMPRESS: &str = "unit/compress";
pub const DECOMPRESS: &str = "unit/decompress";

/// The row of zero pages paged out and touched again: swapping without compression.
pub const SWAP: &str = "unit/swap";
/// The row of a round trip between two threads: two switches within an address space.
pub const THREADS: &str = "threads/0pages";

/// The keys of all rows from which the machine file is made.
#[cfg(test)]
pub const KEYS: [&str; 10] =
    [CALL, NOTHING, FAULT, DISCARD, ZERO, ZERO_BACKWARDS, COMPRESS, DECOMPRESS, SWAP, THREADS];

const CALLS: u64 = 1000;
/// The pages of a sample: enough to hide the cost of the clock and of a call, and few enough that the first are still
/// cached.
const PAGES: usize = 64;
/// Several times the size of last-level caches.
const FAR: usize = 256 << 20;
/// The pages of a sample that zeroes uncached memory.
const ZEROED: usize = 512;
const ZRAM_BYTES: u64 = 16 << 20;
const ZRAM_PAGES: usize = 256;

/// The number of rows of [`calls`].
pub const CALL_ROWS: usize = 6;
/// The number of rows of [`compression`].
pub const COMPRESSION_ROWS: usize = 2;

pub fn calls(lab: &mut Lab) -> Result<(), Halt> {
    let page = page_size();
    lab.row(RowSpec::single(CALL, "system call that does nothing"), || {
        (0..CALLS).for_each(|_| null_call());
        Ok(CALLS)
    })?;
    let map = Mapping::base_pages(PAGES)?;
    let discard = || map.advise(0, map.len(), Advice::LinuxDontNeed);
    // We make the page table first: it also exists when a touched page is discarded.
    map.touch(page, 1);
    discard()?;
    lab.row(RowSpec::single(NOTHING, "discard of a page that is not there"), || {
        for _ in 0..CALLS {
            map.advise(0, page, Advice::LinuxDontNeed)?;
        }
        Ok(CALLS)
    })?;
    let touch = || {
        map.touch(page, 1);
        Ok(())
    };
    let pages = |()| PAGES as u64;
    let plan = RowSpec::single(FAULT, "page touched for the first time");
    lab.prepared_row(plan, discard, || touch().map(pages))?;
    let plan = RowSpec::single(DISCARD, "page discarded, with many others in a call");
    lab.prepared_row(plan, touch, || discard().map(pages))?;
    let far = Mapping::anonymous(FAR)?;
    far.touch(page, 1);
    // Each sample continues where the last one ended.
    let mut next = 0;
    let mut zero = |backwards: bool| {
        let first = next;
        next = (next + ZEROED * page) % FAR;
        for i in 0..ZEROED {
            let i = if backwards { ZEROED - 1 - i } else { i };
            far.zero_page(first + i * page);
        }
        Ok(ZEROED as u64)
    };
    let op = "page zeroed";
    lab.row(RowSpec::single(ZERO, op), || zero(false))?;
    lab.row(RowSpec::single(ZERO_BACKWARDS, op), || zero(true))
}

/// Measures the compressor, or refuses its rows.
pub fn compression(lab: &mut Lab) -> Result<(), Halt> {
    let page = page_size();
    let map = Mapping::anonymous(ZRAM_PAGES * page)?;
    let opened =
        Zram::create(ZRAM_BYTES).and_then(|zram| zram.open_direct().map(|file| (zram, file)));
    // The file, declared last, is closed before the device is removed.
    let (_zram, file) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let why = format!("no zram device can be made and opened ({error})");
            lab.refuse_row(COMPRESS, why, None);
            return Ok(());
        }
    };
    let mut value = 1u64;
    let fill = || {
        value += 2;
        map.touch(page, value << 32 | 1);
        Ok(())
    };
    let each = |one: &dyn Fn(usize) -> io::Result<()>| {
        (0..ZRAM_PAGES).try_for_each(|i| one(i * page))?;
        Ok(ZRAM_PAGES as u64)
    };
    let plan = RowSpec::single(COMPRESS, "page written to zram");
    lab.prepared_row(plan, fill, || each(&|at| map.write_to(&file, at, page)))?;
    let plan = RowSpec::single(DECOMPRESS, "page read from zram");
    lab.row(plan, || each(&|at| map.read_from(&file, at, page)))
}

impl Units {
    pub(crate) fn find(benchmarks: &[Benchmark]) -> Units {
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
