//! Pages memory out and reads it back (S0): the parts of the published `swap_bench`.
//!
//! We write 256 private anonymous pages and pass them to `MADV_PAGEOUT`, with swap on a zram device made for the
//! purpose. The forms are one call for each page, one call over all pages, and one `process_madvise` over all. `round`
//! is the published benchmark's own loop. `unit/swap` is the round with pages of zeros, which are swapped without being
//! compressed.
//!
//! We refuse it where it would mislead. Without working swap, for example, `MADV_PAGEOUT` returns success and pages
//! nothing out. On swap backed by a file, pages stay in the swap cache and are never read back. The number of resident
//! pages shows both.
//!
//! Not shown: absolute times that hold elsewhere. Most of the time is compression, and depends on the compressor.

use std::io;

use rustix::mm::Advice;

use super::super::guards::ZramSwap;
use super::super::lab::{Halt, Lab, RowSpec, Spinners};
use super::super::report::Row;
use super::units::{COMPRESSION_ROWS, SWAP, compression};
use crate::memory::{Mapping, page_size};
use crate::process::{OwnProcess, is_root};

const PAGES: usize = 256;
const ZRAM_BYTES: u64 = 64 << 20;
/// The number of pages that may stay after a page-out. If more stay, paging out doesn't work here.
const MAY_STAY: usize = PAGES / 10;

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    lab.split(9 + COMPRESSION_ROWS);
    compression(lab)?;
    anonymous(lab)
}

fn few_left(row: &Row) -> Option<String> {
    let count = |name| row.vmstat.get(name).copied().unwrap_or(0);
    // Kernels since 6.12 count pages of zeros separately: they only record them and write nothing.
    let out = count("pswpout") + count("swpout_zero");
    (out < row.ops * 9 / 10).then(|| {
        format!(
            "only {out} of {} pages were written to swap: the rest stayed, and the time is too short",
            row.ops
        )
    })
}

fn out_each(map: &Mapping) -> io::Result<u64> {
    for i in 0..PAGES {
        map.advise(i * page_size(), page_size(), Advice::LinuxPageOut)?;
    }
    Ok(PAGES as u64)
}

fn out_all(map: &Mapping) -> io::Result<u64> {
    map.advise(0, map.len(), Advice::LinuxPageOut)?;
    Ok(PAGES as u64)
}

/// Returns a swap device of compressed memory, or the reason why there is none.
fn swap_device(lab: &mut Lab) -> Option<ZramSwap> {
    let swap = match ZramSwap::create(ZRAM_BYTES) {
        Ok(swap) => swap,
        Err(error) => {
            let remedy = if is_root() {
                "a kernel with zram (or its module loaded) and a container that may write /sys and call swapon"
            } else {
                "run as root: a zram device has to be made and swapped to"
            };
            let why = format!(
                "no zram swap device can be made ({error}), and without one MADV_PAGEOUT pages nothing out"
            );
            lab.refuse_row("anonymous", why, Some(remedy));
            return None;
        }
    };
    if let Some(algorithm) = swap.algorithm() {
        lab.warn(format!(
            "anonymous rows include compression with {algorithm}, usually most of the time"
        ));
    }
    Some(swap)
}

fn anonymous(lab: &mut Lab) -> Result<(), Halt> {
    let Some(_swap) = swap_device(lab) else {
        return Ok(());
    };
    let page = page_size();
    // We drop it before the swap device, so that swapoff has nothing to read back.
    let map = Mapping::base_pages(PAGES)?;
    map.touch(page, 1);
    out_all(&map)?;
    let stay = map.resident()?;
    if stay > MAY_STAY {
        let why = format!(
            "{stay} of {PAGES} pages stay resident after MADV_PAGEOUT: times would mean nothing"
        );
        lab.refuse_row("anonymous", why, None);
        return Ok(());
    }
    let plan = RowSpec::single(SWAP, "page of zeros written and paged out");
    let zero = || {
        (0..PAGES).for_each(|i| map.zero_page(i * page));
        out_all(&map)
    };
    lab.row(plan.checked(few_left), zero)?;
    let process = OwnProcess::open()?;
    let ranges: Vec<_> = (0..PAGES).map(|i| map.range(i * page, page)).collect();
    // The value is new in each round, and never zero: the kernel doesn't write pages of zeros to the device.
    let mut value = 1u64;
    let mut fill = || {
        value += 2;
        map.touch(page, value << 32 | 1);
        Ok(())
    };
    for spinning in 0..lab.cpus.len().min(2) {
        let spinners = Spinners::start(&lab.cpus[1..=spinning])?;
        let op = "dirty page written out";
        let single = format!("out/madvise_each/spin{spinning}");
        let mut measure = |spec: RowSpec, out: &dyn Fn() -> io::Result<u64>| {
            lab.prepared_row(spec.against(&spinners).checked(few_left), &mut fill, out)
        };
        measure(RowSpec::single(&single, op), &|| out_each(&map))?;
        let all = format!("out/madvise_all/spin{spinning}");
        measure(RowSpec::batched(all, &single, op), &|| out_all(&map))?;
        let process_madvise = format!("out/process_madvise/spin{spinning}");
        measure(RowSpec::batched(process_madvise, &single, op), &|| {
            process.advise(&ranges, Advice::LinuxPageOut).map(|()| PAGES as u64)
        })?;
    }
    for spinning in 0..lab.cpus.len().min(2) {
        let spinners = Spinners::start(&lab.cpus[1..=spinning])?;
        let plan = RowSpec::single(format!("round/spin{spinning}"), "page written and paged out");
        let plan = plan.against(&spinners).checked(few_left);
        lab.row(plan, || fill().and_then(|()| out_all(&map)))?;
    }
    Ok(())
}
