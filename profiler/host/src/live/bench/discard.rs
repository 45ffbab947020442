//! Touches a page and discards it (S4): the smallest operation that needs a shootdown.
//!
//! `1page` touches one page and discards it with one `madvise(MADV_DONTNEED)`. If threads spin on other CPUs, each of
//! those CPUs must flush. The difference to the time alone, divided by the interrupts that arrived, is the price of a
//! shootdown.
//!
//! `32ranges` discards 32 separate pages: by 32 calls, by one `process_madvise` over 32 ranges, and by one `madvise`
//! that spans all 32 and the holes between them. The last discards too much if the holes are in use. The single steps
//! have rows of their own (`unit/...`).
//!
//! Not shown: lock contention (only one thread changes the address space), and the price on the interrupted CPU.

use rustix::mm::Advice;

use super::super::lab::{Halt, Lab, RowSpec, Spinners};
use super::units;
use crate::memory::{Mapping, page_size};
use crate::process::OwnProcess;

const RANGES: usize = 32;
/// We keep a sample shorter than the time for which another program usually holds a CPU.
const ONE_PAGE_OPS: u64 = 100;
const RANGE_OPS: u64 = 10;

/// Returns the key of the row with `spinning` threads.
pub fn one_page_key(spinning: usize) -> String {
    format!("1page/spin{spinning}")
}

pub fn run(lab: &mut Lab) -> Result<(), Halt> {
    let others = lab.cpus[1..].to_vec();
    // Takes 0, 1, 2, 4, 8 … and all other CPUs.
    let mut counts: Vec<usize> =
        (0..12).map(|i| (1 << i) >> 1).filter(|&n| n < others.len()).collect();
    counts.push(others.len());
    counts.dedup();
    lab.split(counts.len() + 6 + units::CALL_ROWS);
    units::calls(lab)?;
    let page = page_size();
    let one = Mapping::anonymous(page)?;
    for &spinning in &counts {
        let spinners = Spinners::start(&others[..spinning])?;
        // Each discard interrupts each of them.
        let plan = RowSpec::single(one_page_key(spinning), "page touched and discarded");
        let plan = plan.against(&spinners).interrupts_each();
        lab.row(plan, || {
            for i in 0..ONE_PAGE_OPS {
                one.touch(page, i);
                one.advise(0, page, Advice::LinuxDontNeed)?;
            }
            Ok(ONE_PAGE_OPS)
        })?;
    }
    if others.is_empty() {
        lab.warn("only one CPU: there are no shootdowns, so their price cannot be measured");
    }
    let map = Mapping::base_pages(2 * RANGES)?;
    let offsets: Vec<usize> = (0..RANGES).map(|i| 2 * i * page).collect();
    let ranges: Vec<_> = offsets.iter().map(|&offset| map.range(offset, page)).collect();
    let span = (2 * RANGES - 1) * page;
    let op = "32 pages touched and discarded";
    let process =
        OwnProcess::open().and_then(|p| p.advise(&ranges, Advice::LinuxDontNeed).map(|()| p));
    for spinning in [0, 1] {
        if spinning > others.len() {
            continue;
        }
        let spinners = Spinners::start(&others[..spinning])?;
        let measure = |lab: &mut Lab, plan: RowSpec, discard: &dyn Fn() -> std::io::Result<()>| {
            lab.row(plan.against(&spinners), || {
                for i in 0..RANGE_OPS {
                    map.touch(2 * page, i);
                    discard()?;
                }
                Ok(RANGE_OPS)
            })
        };
        let single = format!("32ranges/madvise/spin{spinning}");
        measure(lab, RowSpec::single(&single, op), &|| {
            offsets.iter().try_for_each(|&offset| map.advise(offset, page, Advice::LinuxDontNeed))
        })?;
        let key = format!("32ranges/process_madvise/spin{spinning}");
        match &process {
            Ok(process) => {
                measure(lab, RowSpec::batched(key, &single, op), &|| {
                    process.advise(&ranges, Advice::LinuxDontNeed)
                })?;
            }
            Err(error) => lab.refuse_row(
                key,
                format!("this kernel does not take MADV_DONTNEED in process_madvise ({error})"),
                Some("Linux 6.13 or later takes it, 6.16 or later flushes once for all ranges"),
            ),
        }
        let key = format!("32ranges/spanning_madvise/spin{spinning}");
        measure(lab, RowSpec::batched(key, &single, op), &|| {
            map.advise(0, span, Advice::LinuxDontNeed)
        })?;
    }
    Ok(())
}
