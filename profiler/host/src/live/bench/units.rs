//! Steps that the others are made of, each almost alone: a call, a fault, a page zeroed, a page compressed.
//!
//! Each row does one thing many times, so that the rest of its time is small. `unit/zero` clears pages as this
//! architecture's kernel does, in memory so large that it is in no cache, once forwards and once backwards.
//! `unit/compress` and `unit/decompress` write pages to a zram device and read them, past the page cache; the pages
//! hold what those that `pageout` pages out hold.
//!
//! Not shown: what the steps cost when the code and the data of other steps have to come back into the caches between
//! them.

use std::io;

use rustix::mm::Advice;

use super::super::guards::Zram;
use super::super::lab::{Halt, Lab, RowSpec};
use super::super::units;
use crate::memory::{Mapping, page_size};
use crate::process::null_call;

const CALLS: u64 = 1000;
/// Pages of a sample: enough to hide the clock's cost, and few enough that the first are still cached.
const PAGES: usize = 64;
/// Several times the size of last-level caches.
const FAR: usize = 256 << 20;
/// Pages of a sample that zeroes memory that is in no cache.
const ZEROED: usize = 512;
const ZRAM_BYTES: u64 = 16 << 20;
const ZRAM_PAGES: usize = 256;

/// How many rows [`calls`] has.
pub const CALL_ROWS: usize = 5;
/// How many rows [`compression`] has.
pub const COMPRESSION_ROWS: usize = 2;

/// Calls, faults and zeroing.
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
    // Refused by kernels without huge pages, which need no advice.
    let _ = map.advise(0, map.len(), Advice::LinuxNoHugepage);
    let discard = || map.advise(0, map.len(), Advice::LinuxDontNeed);
    // The page table is there, as it is when a page is discarded that was touched.
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
    lab.row(
        RowSpec::single(units::FAULT, "page touched for the first time"),
        discard,
        || {
            map.touch(page, 1);
            Ok(PAGES as u64)
        },
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

/// The compressor, or a refusal of its rows.
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
    lab.row(
        plan,
        || Ok(()),
        || each(&|at| map.read_from(&file, at, page)),
    )
}
