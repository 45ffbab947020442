//! Measures demand faults by page size (S1). Most of the time is zeroing.
//!
//! Each sample maps fresh memory and touches every page once. If the kernel has `MADV_POPULATE_WRITE`, a second form
//! makes one such call over the same memory, without an exception for each page. We read the kernel's own counters to
//! see whether it used huge pages: a fall-back to small pages would look like a slow huge page.
//!
//! Not shown: memory on another node, and the preemption model (a kernel built for cooperative preemption clears in
//! smaller pieces).

use std::cell::RefCell;
use std::io;

use procfs_core::{FromRead, Meminfo};
use rustix::io::Errno;
use rustix::mm::Advice;

use super::super::guards::HugePool;
use super::super::lab::{Halt, Lab, RowSpec, refuse};
use super::super::parse;
use super::super::report::{Check, Row};
use super::super::sys;
use crate::memory::{Mapping, page_size};

/// Bytes mapped for each sample with small and with transparent huge pages.
const BYTES: usize = 128 << 20;
const HUGE: usize = 2 << 20;
const GIGA_SHIFT: u32 = 30;

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    let memory = Meminfo::from_file("/proc/meminfo").map_err(io::Error::other)?;
    let available = memory.mem_available.unwrap_or(0);
    if available < 4 * BYTES as u64 {
        return Err(refuse(
            format!("only {} MiB of memory are available", available >> 20),
            Some("at least 512 MiB"),
        ));
    }
    lab.split(6);
    let page = page_size();
    pages(
        lab,
        "4k",
        "fault of a base page",
        page,
        |_| None,
        || {
            let map = Mapping::anonymous(BYTES)?;
            map.advise(0, BYTES, Advice::LinuxNoHugepage)
                .or_else(without_thp)?;
            Ok(map)
        },
    )?;
    transparent(lab)?;
    // We need one page, and as much again so that no other memory is pushed out.
    if available < 2 << GIGA_SHIFT {
        lab.refuse_row("1g", "less than 2 GiB of memory are available", None);
        return Ok(());
    }
    match HugePool::with_one_free(GIGA_SHIFT) {
        Ok(_pool) => pages(
            lab,
            "1g",
            "fault of a 1 GiB page",
            1 << GIGA_SHIFT,
            |_| None,
            || Mapping::giant(1 << GIGA_SHIFT),
        ),
        Err(error) => {
            let remedy = match error.kind() {
                io::ErrorKind::OutOfMemory => "reserve one at boot (hugepagesz=1G hugepages=1)",
                io::ErrorKind::NotFound => "a CPU and kernel with 1 GiB pages",
                _ => "run as root, or reserve one at boot (hugepagesz=1G hugepages=1)",
            };
            lab.refuse_row(
                "1g",
                format!("no 1 GiB page is available: {error}"),
                Some(remedy),
            );
            Ok(())
        }
    }
}

/// Accepts `EINVAL`: a kernel without transparent huge pages can't switch them off.
fn without_thp(error: io::Error) -> io::Result<()> {
    if Errno::from_io_error(&error) == Some(Errno::INVAL) {
        Ok(())
    } else {
        Err(error)
    }
}

fn transparent(lab: &mut Lab) -> Result<(), Halt> {
    let mode =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !matches!(parse::chosen(&mode), Some("always" | "madvise")) {
        let remedy = "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        lab.refuse_row(
            "2m",
            "transparent huge pages are switched off or not built",
            Some(remedy),
        );
        return Ok(());
    }
    let size = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size")
        .unwrap_or_default();
    if size.trim().parse() != Ok(HUGE) {
        lab.refuse_row(
            "2m",
            format!(
                "huge pages of this machine are of {} bytes, not 2 MiB",
                size.trim()
            ),
            None,
        );
        return Ok(());
    }
    pages(
        lab,
        "2m",
        "fault of a transparent 2 MiB page",
        HUGE,
        small_instead,
        || {
            let map = Mapping::anonymous(BYTES + HUGE)?;
            map.advise(0, map.len(), Advice::LinuxHugepage)?;
            Ok(map)
        },
    )
}

fn small_instead(row: &Row) -> Option<String> {
    let huge = row.vmstat.get("thp_fault_alloc").copied().unwrap_or(0);
    (huge < row.ops * 9 / 10).then(|| {
        format!(
            "only {huge} of {} faults got a huge page: memory is fragmented, and this is not a figure for 2 MiB pages",
            row.ops
        )
    })
}

/// Measures two rows: a touch of each page, and one populating call.
fn pages(
    lab: &mut Lab,
    name: &str,
    op: &'static str,
    size: usize,
    check: Check,
    fresh: impl Fn() -> io::Result<Mapping>,
) -> Result<(), Halt> {
    let current: RefCell<Option<Mapping>> = RefCell::new(None);
    let prepare = || {
        // Unmaps the old memory first: there may be room for only one mapping at a time.
        current.take();
        current.replace(Some(fresh()?));
        Ok(())
    };
    // A transparent huge page must be aligned. The first aligned address is up to a page into the mapping.
    let with = |action: &dyn Fn(&Mapping, usize, usize) -> io::Result<()>| {
        let borrowed = current.borrow();
        let map = borrowed
            .as_ref()
            .ok_or_else(|| io::Error::other("nothing is mapped"))?;
        let start = map.offset_of_aligned(size);
        let count = (map.len() - start) / size;
        action(map, start, count * size)?;
        Ok(count as u64)
    };
    let plan = RowSpec {
        bytes_per_op: Some(size as u64),
        check,
        ..RowSpec::single(format!("{name}/touch"), op)
    };
    lab.row(plan, prepare, || {
        with(&|map, start, len| {
            for offset in (start..start + len).step_by(size) {
                map.word(offset)
                    .store(1, std::sync::atomic::Ordering::Relaxed);
            }
            Ok(())
        })
    })?;
    let populate = |map: &Mapping, start, len| map.advise(start, len, Advice::LinuxPopulateWrite);
    prepare()?;
    if let Err(error) = with(&populate) {
        lab.refuse_row(
            format!("{name}/populate_write"),
            format!("MADV_POPULATE_WRITE: {error}"),
            Some("Linux 5.14 or later"),
        );
        return Ok(());
    }
    let plan = RowSpec::batched(
        format!("{name}/populate_write"),
        format!("{name}/touch"),
        op,
    );
    lab.row(
        RowSpec {
            bytes_per_op: Some(size as u64),
            check,
            ..plan
        },
        prepare,
        || with(&populate),
    )?;
    if !sys::is_root() {
        lab.warn("not privileged: hardware counters and flush events may be missing here");
    }
    Ok(())
}
