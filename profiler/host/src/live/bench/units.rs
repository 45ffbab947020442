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
use super::super::units;
use crate::memory::{Mapping, page_size};
use crate::process::null_call;

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

/// Measures calls, faults and zeroing.
pub fn calls(lab: &mut Lab) -> Result<(), Halt> {
    let page = page_size();
    lab.row(
        RowSpec::single(units::CALL, "system call that does nothing"),
        || Ok(()),
        || {
            (0..CALLS).for_each(|_| null_call());
            Ok(CALLS)
        },
    )?;
    let map = Mapping::anonymous(PAGES * page)?;
    // Kernels without huge pages refuse the advice, and don't need it.
    let _ = map.advise(0, map.len(), Advice::LinuxNoHugepage);
    let discard = || map.advise(0, map.len(), Advice::LinuxDontNeed);
    // We make the page table first: it also exists when a touched page is discarded.
    map.touch(page, 1);
    discard()?;
    lab.row(
        RowSpec::single(units::NOTHING, "discard of a page that is not there"),
        || Ok(()),
        || {
            for _ in 0..CALLS {
                map.advise(0, page, Advice::LinuxDontNeed)?;
            }
            Ok(CALLS)
        },
    )?;
    lab.row(RowSpec::single(units::FAULT, "page touched for the first time"), discard, || {
        map.touch(page, 1);
        Ok(PAGES as u64)
    })?;
    let touch = || {
        map.touch(page, 1);
        Ok(())
    };
    lab.row(
        RowSpec::single(units::DISCARD, "page discarded, with many others in a call"),
        touch,
        || discard().map(|()| PAGES as u64),
    )?;
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
    lab.row(RowSpec::single(units::ZERO, op), || Ok(()), || zero(false))?;
    let plan = RowSpec::single(units::ZERO_BACKWARDS, op);
    lab.row(plan, || Ok(()), || zero(true))
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
            lab.refuse_row(units::COMPRESS, why, None);
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
    let plan = RowSpec::single(units::COMPRESS, "page written to zram");
    lab.row(plan, fill, || each(&|at| map.write_to(&file, at, page)))?;
    let plan = RowSpec::single(units::DECOMPRESS, "page read from zram");
    lab.row(plan, || Ok(()), || each(&|at| map.read_from(&file, at, page)))
}
